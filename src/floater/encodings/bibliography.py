"""The papers of the catalogue: `references.bib`, read and written as BibTeX."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_ENTRY = re.compile(r"@(\w+)\{([\w:.-]+),\n((?:  \w+ = \{.*\},\n)*)\}\n?")
_FIELD = re.compile(r"  (\w+) = \{(.*)\},\n")
_ACCENTS = {
    "\N{COMBINING GRAVE ACCENT}": "`",
    "\N{COMBINING ACUTE ACCENT}": "'",
    "\N{COMBINING CIRCUMFLEX ACCENT}": "^",
    "\N{COMBINING TILDE}": "~",
    "\N{COMBINING DIAERESIS}": '"',
    "\N{COMBINING CARON}": "v",
    "\N{COMBINING CEDILLA}": "c",
}
_LETTERS = {"Ł": r"{\L}", "ł": r"{\l}", "Ø": r"{\O}", "ø": r"{\o}", "ß": r"{\ss}"}


@dataclass(frozen=True)
class Reference:
    """A reference: a BibTeX entry with its fields as plain text.

    Args:
        kind: type of the entry, as in "inproceedings".
        key: citation key.
        fields: the fields by name, in the order in which they are written. Letters are Unicode; braces
            protect capitals.
    """

    kind: str
    key: str
    fields: Mapping[str, str]

    @property
    def title(self) -> str:
        """Return the title without the braces of BibTeX."""
        quoted = self.fields.get("title", "").replace("``", "“").replace("''", "”")
        return quoted.replace("{", "").replace("}", "")

    @property
    def authors(self) -> list[str]:
        """Return the authors, first names first."""
        authors = self.fields.get("author", "")
        return authors.split(" and ") if authors else []

    @property
    def venue(self) -> str:
        """Return the journal or the proceedings; empty for a preprint."""
        return self.fields.get("journal", self.fields.get("booktitle", ""))

    @property
    def year(self) -> str:
        """Return the year."""
        return self.fields.get("year", "")

    @property
    def doi(self) -> str:
        """Return the DOI; empty if there is none or none was verified."""
        return self.fields.get("doi", "")

    @property
    def arxiv(self) -> str:
        """Return the number of the preprint on arXiv; empty if there is none."""
        return self.fields.get("eprint", "")

    @property
    def links(self) -> list[str]:
        """Return the addresses of the paper: preprint, DOI, anthology of the ACL, and others.

        Example:
            >>> references()["shaw2018selfattention"].links[:2]
            ['https://arxiv.org/abs/1803.02155', 'https://doi.org/10.18653/v1/N18-2074']
        """
        links = [f"https://arxiv.org/abs/{self.arxiv}"] if self.arxiv else []
        if self.doi:
            links += [
                f"https://doi.org/{self.doi}",
                f"https://aclanthology.org/{self.doi.rpartition('/')[2]}",
            ]
        return [*links, *filter(None, [self.fields.get("url")])]

    def bibtex(self) -> str:
        r"""Return the entry as BibTeX in ASCII.

        Example:
            >>> print(Reference("misc", "li2020", {"author": "Łi", "year": "2020"}).bibtex())
            @misc{li2020,
              author = {{\L}i},
              year = {2020},
            }
        """
        lines = [f"  {name} = {{{commands(value)}}},\n" for name, value in self.fields.items()]
        return f"@{self.kind}{{{self.key},\n{''.join(lines)}}}"


def read(text: str) -> dict[str, Reference]:
    r"""Return the entries of a BibTeX text by key: one field to a line, in braces, as `bibtex` writes them.

    Lines that begin with % are comments.

    Raises:
        ValueError: if the text has something else, or a key twice.

    Example:
        >>> read("@misc{li2020,\n  author = {Li},\n}\n")["li2020"].authors
        ['Li']
    """
    entries: dict[str, Reference] = {}
    for kind, key, fields in _ENTRY.findall(text):
        if key in entries:
            raise ValueError(f"the key {key} occurs twice")
        entries[key] = Reference(kind, key, dict(_FIELD.findall(fields)))
    if rest := re.sub(r"(?m)^%.*$", "", _ENTRY.sub("", text)).strip():
        raise ValueError(f"no BibTeX entry with one field to a line: {rest.splitlines()[0]}")
    return entries


@cache
def references() -> Mapping[str, Reference]:
    """Return the papers of the catalogue by key.

    Example:
        >>> references()["liu2020floater"].year
        '2020'
    """
    return read(files("floater.encodings").joinpath("references.bib").read_text(encoding="utf-8"))


@cache
def _by_link() -> Mapping[str, Reference]:
    return {link: reference for reference in references().values() for link in reference.links}


def lookup(link: str, paper: str = "") -> Reference | None:
    """Return the reference of a paper by its link.

    Args:
        link: address of the paper.
        paper: its authors and year, of which an entry is made if the catalogue does not have the link.

    Returns:
        The reference; None if the catalogue does not have the link and `paper` has no authors.

    Example:
        >>> lookup("https://arxiv.org/abs/2104.09864").title
        'RoFormer: Enhanced Transformer with Rotary Position Embedding'
        >>> print(lookup("https://my.org", "Doe et al. 2026").bibtex())
        @misc{doe2026,
          author = {Doe and others},
          year = {2026},
          url = {https://my.org},
        }
    """
    if link in _by_link():
        return _by_link()[link]
    match = re.fullmatch(r"(.*?)(?: (\d{4})\w?)?", paper)
    authors, year = (match[1], match[2] or "") if match else ("", "")
    if not authors:
        return None
    key = re.sub(r"[^a-z0-9]", "", authors.split()[0].lower()) + year
    fields = {"author": authors.replace(" et al.", " and others"), "year": year, "url": link}
    return Reference("misc", key, {name: value for name, value in fields.items() if value})


def bibtex(entries: Iterable[Reference]) -> str:
    """Return references as a BibTeX text, each once, in the order of their keys."""
    unique = {reference.key: reference for reference in entries}
    return "\n\n".join(unique[key].bibtex() for key in sorted(unique))


def commands(text: str) -> str:
    r"""Return a text with the commands of LaTeX in place of letters with accents.

    Example:
        >>> commands("Schütze, Łukasz, Şimşekli")
        'Sch{\\"u}tze, {\\L}ukasz, {\\c{S}}im{\\c{s}}ekli'
    """
    return "".join(_command(character) for character in unicodedata.normalize("NFC", text))


def _command(character: str) -> str:
    letter, *marks = list(unicodedata.normalize("NFD", character))
    if len(marks) != 1 or marks[0] not in _ACCENTS:
        return _LETTERS.get(character, character)
    accent = _ACCENTS[marks[0]]
    letter = {"i": r"\i", "j": r"\j"}.get(letter, letter)
    return rf"{{\{accent}{{{letter}}}}}" if accent.isalpha() else rf"{{\{accent}{letter}}}"
