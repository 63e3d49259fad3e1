"""BibTeX entries of the encodings, data sets and software of a run or a study."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from floater import __version__
from floater.encodings import catalogue, options
from floater.encodings.bibliography import Reference, bibtex, read
from floater.encodings.composed.parts import Composite, named
from floater.errors import DataError, no_directory
from floater.lab.settings import read as read_settings
from floater.lab.tasks.registry import DEFAULT

SOFTWARE = ("paszke2019pytorch", "wolf2020transformers")
TASKS = {
    "glue": ("wang2018glue",),
    "squad": ("rajpurkar2016squad",),
    "race": ("lai2017race",),
    "translation": ("post2018call",),  # BLEU and chrF are sacrebleu's
}
DATA = {
    "wmt14": "bojar2014findings",
    "newstest2014": "bojar2014findings",
    "multi30k": "elliott2016multi30k",
    "squad/train-v2": "rajpurkar2018know",
    "wikitext": "merity2017pointer",
    "wiki_books": "zhu2015aligning",
    "bookcorpus": "zhu2015aligning",
    "ud_ewt": "silveira2014gold",
    "en_ewt": "silveira2014gold",
    "movie_reviews": "pang2004sentimental",
    "so_badges": "du2016recurrent",
}
"""References of data sets by a part of the path or of the name under which a configuration has them."""
_SOURCES = re.compile(r"(?:.*_)?(?:train|valid|source|target|dataset|reference|path)")
_RUN, _STUDY, _MODEL = "config.yaml", "study.yaml", "config.json"


def cite(path: str | Path) -> str:
    """Return the BibTeX entries for a run, a study, or a saved model.

    Args:
        path: directory of a run or of a study, or of a model in the format of Transformers.

    Raises:
        DataError: if the directory has none of these.
        SettingsError: if a configuration cannot be read.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise no_directory(path)
    if (folder / _RUN).is_file():
        return citation([read_settings(folder / _RUN)])
    if (folder / _STUDY).is_file():
        return citation(study_trees(read_settings(folder / _STUDY)))
    if (folder / _MODEL).is_file():
        try:
            return citation([{"model": json.loads((folder / _MODEL).read_text(encoding="utf-8"))}])
        except json.JSONDecodeError as error:
            raise DataError(f"{folder / _MODEL}: not JSON ({error})") from error
    raise DataError(f"{folder} holds no run ({_RUN}), no study ({_STUDY}) and no model ({_MODEL})")


def study_trees(study: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the settings of a study: the common ones, and those of each model."""
    models = [
        ({"position": name} if name in catalogue() else {}) | (changes or {})
        for name, changes in study.get("models", {}).items()
    ]
    return [{"task": DEFAULT, **study, "models": None}, *({"model": model} for model in models)]


def citation(trees: Iterable[Mapping[str, Any]]) -> str:
    """Return the BibTeX entries for some settings, and as comments the sources that have none.

    Args:
        trees: settings of runs, as in their configurations.

    Example:
        >>> tree = {"task": "documents", "data": {"train": "mine/"}, "model": {"position": "t5"}}
        >>> text = citation([tree])
        >>> [line for line in text.splitlines() if line.startswith("%")]
        ['% no entry is known for mine/']
        >>> [line for line in text.splitlines() if line.startswith("@article")]
        ['@article{raffel2020exploring,']
    """
    entries, unknown = [*(_data()[key] for key in SOFTWARE), library()], dict[str, None]()
    for tree in trees:
        entries += [_data()[key] for key in TASKS.get(str(tree.get("task")), ())]
        for encoding, chosen in _encodings(tree):
            papers = _papers(encoding, chosen)
            entries += papers
            if not papers:
                unknown[f"the encoding {encoding}"] = None
        for source in _sources(tree):
            keys = {key for part, key in DATA.items() if re.search(rf"(?<![a-z0-9]){part}", source.lower())}
            entries += [_data()[key] for key in keys]
            if not keys and str(tree.get("task")) not in ("glue", "squad", "race"):
                folder = str(Path(source).parent) if Path(source).suffix else source
                unknown[source if folder == "." else folder] = None
    return "\n\n".join([bibtex(entries), *(f"% no entry is known for {source}" for source in unknown)])


def library() -> Reference:
    """Return the reference of this library."""
    fields = {
        "author": "{The floater developers}",
        "title": "floater: Position Information for {Transformers}",
        "note": f"Version {__version__}",
    }
    return Reference("misc", "floater", fields)


@cache
def _data() -> Mapping[str, Reference]:
    """Return the references of data sets and software by key."""
    return read(files("floater.lab").joinpath("references.bib").read_text(encoding="utf-8"))


def _papers(encoding: str, chosen: Mapping[str, Any]) -> list[Reference]:
    """Return the papers of an encoding and, of a combination, those of its parts."""
    model = catalogue().get(encoding)
    if model is None:
        return []
    papers, values = list(model.card.references), options(encoding) | dict(chosen)
    if issubclass(model, Composite):
        for part in map(named, model.named_parts(values)):
            papers += _papers(*part)
    elif isinstance(inner := values.get("model"), str | Mapping):  # that of a wrapper, such as a clock
        papers += _papers(*named(inner))
    return papers


def _encodings(tree: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the encodings that settings name, with their options, and the flow of a plugged model."""
    if not isinstance(tree, Mapping):
        return
    for name, value in tree.items():
        if name in ("position", "decoder_position", "word_position"):
            if isinstance(value, list):
                yield "compose", {"models": value}
            elif isinstance(value, str):
                yield named({"name": value, **(tree.get(f"{name}_options") or {})})
            elif isinstance(value, Mapping) and "name" in value:
                yield named(value)
        elif isinstance(value, Mapping) and (
            name == "floater"
            or (name == "plug" and any(value.get(key) is not None for key in ("options", "flow")))
        ):
            yield "floater", {}
        else:
            yield from _encodings(value)


def _sources(tree: Any, name: str = "") -> Iterator[str]:
    """Yield the files, data sets and checkpoints that settings name."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _sources(value, key)
    elif isinstance(tree, list):
        for value in tree:
            yield from _sources(value, name)
    elif isinstance(tree, str) and _SOURCES.fullmatch(name) and re.search(r"[/.]", tree):
        yield tree  # without a slash or a dot it is a language, or built-in data
