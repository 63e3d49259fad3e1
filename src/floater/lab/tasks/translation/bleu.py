"""Translation scores: BLEU, chrF, and the tokenised BLEU of the papers."""

import functools
import importlib.metadata
import logging
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from floater.errors import DataError
from floater.lab.tasks.measurement import METRICS, Measurement
from floater.lab.text.languages import CHINESE, UNSPACED, check_code, lacks_spaces, primary
from floater.lab.text.moses import normaliser, tokenizer

logger = logging.getLogger(__name__)
COMPOUND = re.compile(r"(\S)-(\S)")


def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    language: str | None = None,
    lengths: Sequence[int] = (),
) -> Measurement:
    """Score translations against one reference each.

    BLEU (Papineni et al. 2002) and chrF (Popović 2015) are those of sacrebleu (Post 2018), on plain text,
    with its default settings for the language (see `bleu_of`); they can be compared between papers if their
    signatures are equal. Tokenised BLEU is the number that Vaswani et al. (2017), Ott et al. (2018) and Liu
    et al. (2020) report; see `split_compounds`. It depends on the tokenizer and serves only for comparison
    with these papers. Both sides are first converted to Unicode form NFC, in which the vocabularies write.

    Args:
        hypotheses: translations, plain text.
        references: one reference translation for each hypothesis, plain text.
        language: code of the target language, as "de" or "zh-Hans". Without it, or for a language without
            Moses rules or without spaces, tokenised BLEU is not computed, and its signature says so. A
            warning is logged if the references have no spaces and the language should.
        lengths: lengths of the source sentences.

    Returns:
        The scores, 0 to 100, with their statistics and signatures, which describe the computation of each
        and end in "|norm:nfc" if a reference was not NFC; the report is three lines to quote, and `lines` are
        the translations.

    Raises:
        DataError: if there is no sentence, or the numbers of references and hypotheses differ.

    Example:
        >>> lines = ["Die Katze sitzt auf der Matte."] * 2
        >>> {name: round(value, 1) for name, value in score(lines, lines).scores.items()}
        {'bleu': 100.0, 'chrf': 100.0}
    """
    if len(references) != len(hypotheses):
        raise DataError(f"{len(hypotheses)} hypotheses but {len(references)} references")
    if not hypotheses:
        raise DataError("no sentence to score: 0 hypotheses")
    warn_of_spaces(language, references)
    *normal, mark = normalised(hypotheses, references)
    statistics, signatures = {}, {}
    for name, metric in (("bleu", bleu_of(language)), ("chrf", CHRF())):
        statistics[name], plain = _extract(metric, *normal)
        signatures[name] = plain + mark
    signatures["tokenised_bleu"] = "not computed: no target language given"
    if language is not None:
        try:
            split = split_compounds(language)
            language = primary(language)
        except ValueError as error:
            signatures["tokenised_bleu"] = f"not computed: {error}"
        else:
            sides = ([split(line) for line in lines] for lines in normal)
            statistics["tokenised_bleu"], plain = _extract(BLEU(tokenize="none", force=True), *sides)
            moses = f"moses-{language}-a+compounds|sacremoses:{importlib.metadata.version('sacremoses')}"
            signatures["tokenised_bleu"] = f"{plain}|pre:{moses}{mark}"
    scores = {name: METRICS[name].score(rows.sum(0)) for name, rows in statistics.items()}
    shown = {name: f"{scores[name]:.2f}" if name in scores else "none" for name in signatures}
    report = [f"{METRICS[name].label} {shown[name]} ({text})" for name, text in signatures.items()]
    return Measurement(
        lengths=np.array(lengths, dtype=np.int64),
        statistics=statistics,
        lines=hypotheses,
        signatures=signatures,
        scores=scores,
        report="\n".join(report),
    )


def normalised(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[list[str], list[str], str]:
    r"""Return both sides in Unicode form NFC, and the end of signatures, empty if they were NFC.

    Example:
        >>> normalised(["\xe9"], ["e\u0301"])
        (['é'], ['é'], '|norm:nfc')
    """
    both = [*hypotheses], [*references]
    ours, theirs = ([unicodedata.normalize("NFC", line) for line in lines] for lines in both)
    return ours, theirs, "" if (ours, theirs) == both else "|norm:nfc"


def bleu_of(language: str | None) -> BLEU:
    """Return BLEU with the tokenizer of a language, as the command line of sacrebleu chooses it.

    This is "zh" for Chinese, "ja-mecab" for Japanese and "ko-mecab" for Korean if their packages are
    installed (sacrebleu[ja], sacrebleu[ko]), and else "13a". The characters are the tokens ("char") of other
    languages without spaces between words, and of Japanese without its package: as words, whole sentences
    would be right or wrong.

    Args:
        language: code of the language, see `score`.

    Example:
        >>> [bleu_of(code).tokenizer.signature() for code in ("de", "zh-Hans", "th")]
        ['13a', 'zh', 'char']
    """
    return BLEU(tokenize=_tokenizer(language))


def warn_of_spaces(language: str | None, references: Sequence[str]) -> None:
    """Log a warning if references have no spaces, and BLEU splits them there."""
    if _tokenizer(language) == "13a" and lacks_spaces(references):
        logger.warning(
            "the references have no spaces between words, so that BLEU takes whole sentences for words; name "
            "their language, as in zh, ja or th (data.target, or --language), which is %s",
            language,
        )


@functools.cache
def _tokenizer(language: str | None) -> str:
    """Return the name of sacrebleu's tokenizer of a language."""
    code = "" if language is None else primary(language)
    if code in CHINESE:
        return "zh"
    name, other = {"ja": ("ja-mecab", "char"), "ko": ("ko-mecab", "13a")}.get(code, ("", ""))
    if not name:
        return "char" if code in UNSPACED else "13a"
    try:
        BLEU(tokenize=name)
    except (ImportError, RuntimeError, AssertionError) as error:  # not installed, or with another dictionary
        logger.warning(
            "BLEU of '%s' is by '%s': there is no '%s' (%s)",
            language,
            other,
            name,
            " ".join(str(error).split()),
        )
        return other
    return name


def check_language(language: str) -> None:
    """Refuse an unknown language code, which would select the scoring rules of another language.

    Raises:
        DataError: if it is none; see `check_code`.
    """
    try:
        check_code(language)
    except ValueError as error:
        raise DataError(str(error)) from None


def length_bins(measurement: Measurement, edges: Sequence[int]) -> list[dict[str, Any]]:
    """Return BLEU and chrF by bins of source length.

    The k edges define k + 1 bins, and every sentence is in one of them: lengths below the first edge, from
    each edge up to but excluding the next, and from the last edge on.

    Args:
        measurement: result of `score`, with lengths as `floater.lab.text.languages.lengths` counts them.
        edges: bounds of the bins, positive and strictly increasing.

    Returns:
        The least and the greatest length of each bin (None if unbounded), its number of examples, and its
        scores.

    Example:
        >>> text = ["Das ist ein kurzer Satz.", "Das hier ist ein etwas längerer Satz."]
        >>> print(*length_table(length_bins(score(text, text, lengths=[5, 7]), [4, 6])), sep="\\n")
        words and punctuation marks of the source, or characters of scripts without spaces:
        0 to 3              0 lines  -
        4 to 5              1 lines  BLEU 100.00  chrF 100.00
        6 and more          1 lines  BLEU 100.00  chrF 100.00
    """
    number = np.searchsorted(edges, measurement.lengths, side="right")
    return [
        {"lengths": [low, high and high - 1], "examples": int((number == k).sum())}
        | {name: measurement.score(name, number == k) for name in ("bleu", "chrf")}
        for k, (low, high) in enumerate(zip([0, *edges], [*edges, None], strict=True))
    ]


def length_table(bins: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line that names the unit of lengths, and a line for each bin of `length_bins`."""
    lines = ["words and punctuation marks of the source, or characters of scripts without spaces:"]
    for row in bins:
        low, high = row["lengths"]
        bounds = f"{low} and more" if high is None else f"{low} to {high}"
        scores = f"BLEU {row['bleu']:.2f}  chrF {row['chrf']:.2f}" if row["bleu"] is not None else "-"
        lines.append(f"{bounds:<14} {row['examples']:>6} lines  {scores}")
    return lines


def split_compounds(language: str) -> Callable[[str], str]:
    """Make the tokenizer of tokenised BLEU: Moses, then compounds split at their hyphens.

    Punctuation is normalised and text tokenised by the Moses rules of the language, with aggressive dash
    splits (option `-a`). Then each hyphen between two non-space characters is set apart as `##AT##-##AT##`,
    as in the data of Luong et al. (2015) and the evaluation scripts of tensor2tensor and fairseq. This also
    holds for the `@-@` that the dash splits have made. Those scripts do not normalise punctuation; here both
    sides are normalised, so that the kind of quotation marks does not affect the score.

    Args:
        language: ISO 639-1 code of the language.

    Returns:
        A function from a plain sentence to its tokens, with single spaces between them.

    Raises:
        ValueError: if Moses has no rules for the language, or does not split its words.

    Example:
        >>> split_compounds("de")("Das E-Mail-Programm läuft.")
        'Das E @ ##AT##-##AT## @ Mail @ ##AT##-##AT## @ Programm läuft .'
    """
    if primary(language) in UNSPACED:
        raise ValueError(f"Moses does not split the words of '{language}', which has no spaces between them")
    normalise, tokenise = normaliser(language), tokenizer(language)

    def split(sentence: str) -> str:
        return COMPOUND.sub(r"\1 ##AT##-##AT## \2", tokenise(normalise(sentence)))

    return split


def _extract(metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> tuple[np.ndarray, str]:
    """Return the statistics of each sentence, (n, k), and the metric's signature."""
    statistics = np.array(metric._extract_corpus_statistics(hypotheses, [references]), dtype=float)
    return statistics, str(metric.get_signature())
