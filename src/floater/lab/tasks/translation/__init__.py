"""Translation: training on aligned text, decoding, scoring."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from floater.encodings import options
from floater.encodings.spec import Site
from floater.errors import DataError
from floater.lab.tasks.corpora.text import Pairs
from floater.lab.tasks.examples import Collate
from floater.lab.tasks.measurement import Measurement, check_edges, positions
from floater.lab.tasks.prepared import Prepared, Splits
from floater.lab.tasks.registry import register
from floater.lab.tasks.settings import named_vocabulary, vocabulary_size
from floater.lab.tasks.task import Task, vocabulary_of
from floater.lab.tasks.translation.bleu import (
    bleu_of,
    check_language,
    length_bins,
    length_table,
    score,
    warn_of_spaces,
)
from floater.lab.tasks.translation.data import TokenPairs, collate, line_of, load_corpus, read_test_pairs
from floater.lab.tasks.translation.decode import CutTranslation, translate, translate_and_count
from floater.lab.tasks.translation.fields import SourceFields
from floater.lab.tasks.translation.settings import Decoding, TranslationSettings
from floater.lab.tasks.translation.validation import token_losses, validate
from floater.lab.text import moses
from floater.lab.text.bpe import encode, load_bpe, train_bpe
from floater.lab.text.languages import UNSPACED, lengths, primary
from floater.lab.training.files import sealed
from floater.lab.training.model import configured, load_model, set_reading
from floater.lab.training.run import MODEL, VOCABULARY, RunPath, inside
from floater.lab.training.settings import default_of
from floater.lab.training.warm_start import warm_started
from floater.positions import Positions
from floater.transformer import FloaterForConditionalGeneration, encoder_decoder

__all__ = ["CutTranslation", "Decoding", "Translation", "TranslationSettings", "translate"]
logger = logging.getLogger(__name__)
Lines = Callable[[Sequence[str]], list[str]]


@register("translation")
class Translation(Task):
    """Translation by an encoder-decoder, validated by BLEU."""

    Settings = TranslationSettings
    metric, example, output = "bleu", "pair", "translations"
    metrics = ("bleu", "chrf", "tokenised_bleu", "loss")
    stored = (Pairs, TokenPairs, SourceFields)
    shorten = ", or exclude long pairs with data.max_tokens"

    def check_needs(self, settings: TranslationSettings) -> None:
        self.check(settings)
        try:
            check_language(settings.data.target)
        except DataError as error:
            raise DataError(f"data.target: {error}") from None
        start = settings.training.warm_start
        if start is not None and not (inside(Path(start), MODEL) / "config.json").is_file():
            raise DataError(f"{start} holds no trained model, which training.warm_start needs")

    def read(self, settings: TranslationSettings) -> Splits:
        return Splits(*load_corpus(settings.data))

    def make_processor(self, settings: TranslationSettings, train: Pairs) -> PreTrainedTokenizerFast:
        """Return the joint vocabulary: that of the warm start, that of the settings, or a new one.

        Raises:
            DataError: if a vocabulary cannot be read, or that of the settings differs from that of the warm
                start.
        """
        start, data = settings.training.warm_start, settings.data
        named = [Path(path) for path in (start, data.vocabulary) if path is not None]
        tokenizers = [load_bpe(sealed(inside(path, VOCABULARY, MODEL))) for path in named]
        if len({tokenizer.backend_tokenizer.to_str() for tokenizer in tokenizers}) > 1:
            raise DataError(
                f"data.vocabulary, {data.vocabulary}, is not that of training.warm_start, {start}; leave "
                "it out"
            )
        if not tokenizers:
            return train_bpe(chain(train.source, train.target), data.vocabulary_size)
        size = len(tokenizers[0])
        if data.vocabulary_size not in (default_of(data, "vocabulary_size"), size):
            logger.warning(
                "data.vocabulary_size %s is not read: the vocabulary of %s has %s tokens",
                *(f"{data.vocabulary_size:,}", named[0], f"{size:,}"),
            )
        return tokenizers[0]

    def vocabulary_key(self, settings: TranslationSettings) -> Any:
        trains = settings.training.warm_start is None and settings.data.vocabulary is None
        return self.name if trains else None

    def encode(self, settings: Any, processor: Any, examples: Pairs, *, training: bool = False) -> TokenPairs:
        if not training:
            return TokenPairs.of(examples, processor)
        return replace(TokenPairs.of(examples, processor, settings.data.max_tokens), pairs=None)

    def where(self, settings: Any, examples: TokenPairs, index: int, name: str) -> str:
        part = "valid" if name == "validation" else "train"
        line = line_of(settings.data, int(examples.kept[index]), part)
        return super().where(settings, examples, index, name) + line

    def kind(self, settings: Any) -> Any:
        return encoder_decoder

    def build(self, settings: Any, processor: Any, train: TokenPairs) -> FloaterForConditionalGeneration:
        config, start = configuration(settings, len(processor)), settings.training.warm_start
        if start is None:
            return encoder_decoder(config)
        with torch.random.fork_rng():
            trained, _ = load_model(configured(encoder_decoder), start, "cpu", read=load_bpe)
        return warm_started(config, trained, start)

    def empty(self, settings: TranslationSettings) -> FloaterForConditionalGeneration:
        with torch.device("meta"), torch.random.fork_rng():
            return encoder_decoder(configuration(settings, vocabulary_size(settings.data)))

    def collate(self, settings: Any, processor: Any, model: Any) -> Collate:
        def batch(examples: Sequence[Any]) -> dict[str, Any]:
            inputs: dict[str, Any] = collate(examples, pad=processor.pad_token_id)
            inputs |= model.training_inputs(inputs["labels"])
            return inputs

        return batch

    def check_model(self, settings: Any, model: Any, processor: Any, examples: Any, name: str) -> None:
        """Check the lengths of the pairs against learned positions and the horizon of random times.

        Raises:
            DataError: if a pair is too long.
        """
        tables = model.encoder.position.max_positions, model.decoder.position.max_positions
        table, times = min((size for size in tables if size is not None), default=None), model.encoder.times
        horizon = None if times is None or name != "training" else times.horizon
        for bound, what in (
            (table, "the learned positions of model.max_length"),
            (horizon, "the horizon of random times, times.max_scale x model.max_length"),
        ):
            longest = max(examples.lengths)
            if bound is not None and longest > bound:
                where = self.where(settings, examples, list(examples.lengths).index(longest), name)
                raise DataError(
                    f"{where} has {longest} tokens, more than {what}, {bound}; raise that"
                    + self.shorten * (name == "training")
                )

    def check(self, settings: TranslationSettings) -> None:
        if settings.data.columns and settings.data.train is None:  # a trained run may be given a table
            raise DataError(
                "data.columns names columns of tables, but data.train and data.valid are not given"
            )
        sites: tuple[Site, ...] = ("self", "decoder", "cross")
        models = [settings.model.position_model(site) for site in sites]
        # a shorter table may suffice; the longest pair is compared with it once the data are read
        length = min([8, *(model.max_positions for model in models if model.max_positions is not None)])
        zeros = torch.zeros(1, length, dtype=torch.long)
        example_positions = Positions.arange(length).but(
            token=zeros, language=zeros, reordered=zeros, target_length=torch.tensor([length])
        )
        for model in models:
            model.prepare(example_positions)

    def summary(self, prepared: Prepared) -> str:
        language = prepared.settings.data.target
        warn_of_spaces(language, prepared.valid.pairs.target)
        tokens = f"{len(prepared.processor):,} tokens in the joint vocabulary"
        return f"{tokens}; BLEU of '{language}' is tok:{bleu_of(language).tokenizer.signature()}"

    def score(self, settings: Any, model: Any, processor: Any, examples: TokenPairs) -> Measurement:
        return validate(model, processor, examples, settings.decoding, settings.data.target)

    def validate(self, prepared: Prepared) -> Measurement:
        """Score the validation pairs as `final` does, except for the beam size, and log translations."""
        training, pairs = prepared.settings.training, prepared.valid.pairs
        search = replace(prepared.settings.decoding, beam=training.generation_num_beams)
        language = prepared.settings.data.target
        measurement = validate(prepared.model, prepared.processor, prepared.valid, search, language)
        shown = list(zip(pairs.source, pairs.target, measurement.lines, strict=True))[: training.samples]
        for source, reference, translation in shown:
            logger.info(
                "  source      %s\n  reference   %s\n  translation %s", source, reference, translation
            )
        return measurement

    def validates(self, settings: TranslationSettings) -> bool:
        return settings.training.evaluates != "no"

    def final(self, prepared: Prepared) -> dict[str, Any]:
        settings = prepared.settings
        if not self.validates(settings):
            return {}
        return self.score(settings, prepared.model, prepared.processor, prepared.valid).scores

    def evaluate(
        self,
        run: RunPath,
        source: Any,
        *,
        reference: str | Path | None = None,
        language: str | None = None,
        bins: Sequence[int] = (),
        reading: Any = None,
        decoding: Decoding | None = None,
    ) -> Measurement:
        """Translate a test set with the final model of a run and score it.

        Args:
            run: directory of a finished run, or of a saved model.
            source: file of source sentences, one per line, or a table of pairs, whose columns are those of
                the run.
            reference: file of the translations of a file of sentences.
            language: language of the references; by default the run's target language.
            bins: bounds of the bins of source length, see `lengths`; empty for no bins.
            reading: settings for long sentences, see `Reading.of`; by default those of the model.
            decoding: settings of the decoding; by default those of the run's configuration.

        Returns:
            BLEU, chrF and tokenised BLEU with their signatures, a report with the bins, and the translations,
            one for each line. The notes, which are logged too, count translations that were cut and pairs
            with an empty side; these are scored here, and a study excludes them.

        Raises:
            DataError: if the run or a file is not valid.
            PositionError: if a source line is longer than the table of learned positions, or the model does
                not support `reading`.
        """
        check_edges(bins)
        if language is not None:
            check_language(language)
        model, tokenizer, settings = self.load(run)
        pairs = read_test_pairs(source, reference, settings and settings.data)
        if language is None and settings is not None:
            language = settings.data.target
        set_reading(model, reading)
        texts = text_of(settings)
        search = decoding or decoding_of(settings)
        written, cut = translate_and_count(model, tokenizer, texts.source(pairs.source), search, pairs.fields)
        hypotheses = texts.plain(written)
        notes = _notes_of_cut(cut, hypotheses)
        empty = sum(not all(map(str.strip, pair)) for pair in zip(pairs.source, pairs.target, strict=True))
        if empty:
            notes.append(
                f"{empty} of {len(hypotheses)} pairs have an empty side and are scored; a study excludes them"
            )
        for note in notes:
            logger.warning("%s", note)
        measurement = score(hypotheses, pairs.target, language=language, lengths=lengths(pairs.source))
        measurement = replace(measurement, notes=notes)
        if not bins:
            return measurement
        by_length = length_bins(measurement, bins)
        return replace(
            measurement, bins=by_length, report="\n".join([measurement.report, *length_table(by_length)])
        )

    def translator(
        self,
        run: RunPath,
        reading: Any = None,
        *,
        device: str | torch.device | None = None,
        **changes: Any,
    ) -> Callable[..., list[str]]:
        """Return a function that translates lines with the final model of a run, as `translate` does.

        Its arguments are the lines, and the fields of their positions, if there are any.

        Args:
            run: directory of a finished run, or of a saved model.
            reading: settings for long sentences, see `Reading.of`; by default those of the model.
            device: device of the model; by default a GPU if there is one.
            **changes: fields of `Decoding` that replace those of the run.

        Raises:
            DataError: if the run is not valid, or the decoding is impossible.
        """
        model, tokenizer, settings = self.load(run, device)
        set_reading(model, reading)
        try:
            decoding = replace(decoding_of(settings), **changes)
        except ValueError as error:
            raise DataError(str(error)) from None
        if decoding.beam > 1 and not model.autoregressive:
            raise DataError(f"beam is {decoding.beam}; it must be 1: {run} writes all tokens at once")
        if decoding.beam == 1 and "length_penalty" in changes:
            raise DataError(f"length_penalty is {decoding.length_penalty:g}, which only a beam above 1 reads")
        texts = text_of(settings)

        def lines_translated(lines: Sequence[str], fields: SourceFields | None = None) -> list[str]:
            return texts.plain(translate(model, tokenizer, texts.source(lines), decoding, fields))

        return lines_translated

    def measure(
        self,
        run: RunPath,
        source: str | Path,
        reference: str | Path | None = None,
        token: str | None = None,
    ) -> Measurement:
        """Return BLEU, chrF and loss of a run's final model on a test set, sentence by sentence.

        If Moses supports the target language, tokenised BLEU is returned as well. Lengths are those of the
        source before BPE, see `floater.lab.text.languages.lengths`; the position of a loss is that of its
        token in the reference.

        Args:
            run: directory of a finished run.
            source: file of source sentences, one per line, or a table of pairs.
            reference: file of the translations of a file of sentences.
            token: regular expression of the unit of lengths; by default a word or a punctuation mark, of a
                script without spaces a character.

        Raises:
            DataError: if the run or a file is not valid.
            PositionError: if a source line is longer than the table of learned positions.
        """
        model, tokenizer, settings = self.load(run)
        pairs = read_test_pairs(source, reference, settings.data, skip_empty=True)
        texts = text_of(settings)
        tokens = replace(pairs, source=texts.source(pairs.source), target=texts.target(pairs.target))
        written, cut = translate_and_count(
            model, tokenizer, tokens.source, decoding_of(settings), pairs.fields
        )
        hypotheses = texts.plain(written)
        nats = token_losses(model, tokenizer, tokens)
        notes = _notes_of_cut(cut, hypotheses)
        if pairs.skipped:
            notes.append(f"{pairs.skipped} pairs with an empty side were excluded")
        counts = lengths(pairs.source, token)
        measurement = score(hypotheses, pairs.target, language=settings.data.target, lengths=counts)
        position_nats, position_tokens = positions(nats)
        return replace(
            measurement,
            statistics=measurement.statistics | {"loss": np.array([[row.sum(), len(row)] for row in nats])},
            position_nats=position_nats,
            position_tokens=position_tokens,
            notes=notes,
            signatures={name: measurement.signatures[name] for name in measurement.statistics},
        )

    def question(self, settings: TranslationSettings, metric: str, test: Mapping[str, Any] | None) -> Any:
        data = settings.data
        tokens = (vocabulary_of(settings), data.moses) if metric == "loss" else None
        trained = ("train", "max_tokens", "vocabulary")
        valid = {name: value for name, value in vars(data).items() if not name.startswith(trained)}
        return tokens, valid if test is None else None

    def lengths(self, settings: TranslationSettings) -> str:
        characters = "characters, " * (primary(settings.data.source) in UNSPACED)
        return f"{characters}words and punctuation marks of the source"

    def check_test(self, settings: TranslationSettings, **test: Any) -> None:
        source, reference, token = test["source"], test.get("reference"), test.get("token")
        try:
            re.compile(token or "")
        except re.error as error:
            raise DataError(f"token {token!r} is not a regular expression: {error}") from None
        pairs = read_test_pairs(source, reference, settings.data, skip_empty=True)
        texts, trained = text_of(settings), Path(settings.run) / VOCABULARY
        tokenizer = load_bpe(trained) if trained.is_dir() else named_vocabulary(settings.data)
        sides: tuple[tuple[Site, Any, Any, Lines], ...] = (
            ("self", source, pairs.source, texts.source),
            ("decoder", reference or source, pairs.target, texts.target),
        )
        for site, path, lines, prepare in sides:
            if tokenizer is None:
                length = 1 + max(len(line.split()) for line in lines)
                what = f"the longest line of {path} has {length - 1} words and an end"
            else:
                length = int(encode(tokenizer, prepare(lines)).lengths.max())
                what = f"the longest line of {path} has {length} tokens"
            settings.model.check_reach(length, what, site)


class Texts(NamedTuple):
    """Conversions between plain text and the model's input and output text.

    Args:
        source: function from plain source sentences to those that the model reads.
        target: function from plain target sentences to those that the model writes.
        plain: function from the model's output to plain text.
    """

    source: Lines = list
    target: Lines = list
    plain: Lines = list


def text_of(settings: TranslationSettings | None) -> Texts:
    """Return the conversions of a run's texts; a saved model that is not a run reads plain text.

    Example:
        >>> from floater.lab.tasks.translation.settings import Data
        >>> data = Data(train_source="a", train_target="b", valid_source="c", valid_target="d", moses=True)
        >>> texts = text_of(TranslationSettings(run="run", data=data))
        >>> texts.source(["It’s well-known."]), texts.plain(["Das ist wohl @-@ bekannt ."])
        (['It &apos;s well @-@ known .'], ['Das ist wohl-bekannt.'])
    """
    if settings is None or not settings.data.moses:
        return Texts()

    def tokens(language: str) -> Lines:
        # as the scripts of Liu et al. 2020, which do not normalise the punctuation of a test set
        tokenise = moses.tokenizer(language)
        return lambda lines: [tokenise(line.replace("’", "'")) for line in lines]

    join = moses.detokenizer(settings.data.target)
    source, target = tokens(settings.data.source), tokens(settings.data.target)
    return Texts(source, target, lambda lines: [join(line) for line in lines])


def _notes_of_cut(cut: int, translations: Sequence[str]) -> list[str]:
    """Return a note on the number of translations that were cut, if there are any."""
    return [f"{cut} of {len(translations)} translations reached the longest output and were cut"] * bool(cut)


def configuration(settings: TranslationSettings, vocabulary: int) -> Any:
    """Return the configuration of the model; `languages` is by default the number of languages."""
    config = settings.model.config(vocabulary)
    if settings.data.languages and "languages" in options(config.position):
        config.position_options = {"languages": len(settings.data.languages)} | config.position_options
    return config


def decoding_of(settings: TranslationSettings | None) -> Decoding:
    """Return the decoding settings of a run, or the defaults for a saved model that is not a run."""
    return Decoding() if settings is None else settings.decoding
