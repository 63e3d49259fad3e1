"""Settings of a translation run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from floater.encodings import catalogue
from floater.lab.tasks import settings
from floater.lab.tasks.settings import PositionName, resolve_position
from floater.lab.text import moses
from floater.lab.text.bpe import BYTES, SPECIALS
from floater.lab.training.contents import Part
from floater.lab.training.named_files import paths_in
from floater.lab.training.run import MODEL, inside
from floater.lab.training.settings import SmoothedTrainingSettings, check_numbers, check_read


@dataclass(frozen=True)
class Data:
    """Source of the sentences: text files, tables, a Hugging Face data set, or the built-in corpus.

    Attributes:
        source: source language code, as in "en".
        target: target language code, as in "de".
        train_source: file or list of files of training sentences, one per line, plain or .gz.
        train_target: file or files of their translations, line by line.
        valid_source: file or files of validation sentences.
        valid_target: file or files of their translations.
        train: table of training pairs, or list of tables, in place of text files: CSV, TSV, JSON, JSON Lines,
            Parquet, plain or compressed, a folder or "hf:NAME" of a data set of Hugging Face.
        valid: table or tables of validation pairs.
        columns: names of the columns of tables, as in {source: english, target: german}; by default guessed,
            also by the codes of the languages. Two more are read only if named, for encodings of the source
            that need them: language, a code of `languages`; and reordered, for each word its position in the
            order of the other language, as in [0, 2, 1] or "0 2 1".
        languages: codes of the source languages in the column language.
        dataset: name of a Hugging Face data set with a "translation" column, in place of files.
        dataset_config: configuration of the data set, as in "de-en".
        builtin: number of training pairs of the built-in corpus (0 for none), in place of files.
        builtin_seed: seed of the built-in corpus.
        moses: true if the files contain Moses tokens, as `floater data wmt14_en_de` writes them. Inputs are
            then tokenised before translation, and outputs detokenised, so that both are plain text.
        max_tokens: maximum number of BPE tokens of a side of a training pair; longer pairs are excluded and
            counted.
        vocabulary: run directory or tokenizer.json to load; by default that of the warm start, or a new one.
        vocabulary_size: number of joint BPE tokens to train; at least 259, the bytes and the special tokens.
    """

    source: str = "en"
    target: str = "de"
    train_source: str | list[str] | None = None
    train_target: str | list[str] | None = None
    valid_source: str | list[str] | None = None
    valid_target: str | list[str] | None = None
    train: str | list[str] | None = None
    valid: str | list[str] | None = None
    columns: dict[str, str] = field(default_factory=dict)
    languages: list[str] = field(default_factory=list)
    dataset: str | None = None
    dataset_config: str | None = None
    builtin: int = 0
    builtin_seed: int = 0
    moses: bool = False
    max_tokens: int | None = None
    vocabulary: str | None = None
    vocabulary_size: int = 32768

    def __post_init__(self) -> None:
        if self.moses:
            for language in (self.source, self.target):
                moses.tokenizer(language)  # raises an error for a language without rules
        check_numbers(self, positive=("max_tokens",), builtin=0, vocabulary_size=BYTES + len(SPECIALS))
        files = (self.train_source, self.train_target, self.valid_source, self.valid_target)
        tables = (self.train, self.valid)
        is_text, is_table = (any(file is not None for file in each) for each in (files, tables))
        if sum([self.dataset is not None, self.builtin > 0, is_text, is_table]) != 1:
            raise ValueError(
                "give exactly one of: text files (train_*, valid_*), tables (train, valid), dataset, builtin"
            )
        if is_text and None in files:
            raise ValueError("give all of train_source, train_target, valid_source and valid_target")
        if is_table and None in tables:
            raise ValueError("give both train and valid")
        if self.dataset is None:
            check_read(self, ["dataset_config"], "data.dataset")
        if not self.builtin:
            check_read(self, ["builtin_seed"], "data.builtin")
        if self.vocabulary is not None:
            check_read(self, ["vocabulary_size"], "a run without data.vocabulary")
        if bool(self.languages) != ("language" in self.columns):
            raise ValueError("languages and columns.language belong together: give both or neither")
        if len(set(self.languages)) < len(self.languages):
            raise ValueError(f"languages has a code twice: {', '.join(self.languages)}")
        if self.moses and "reordered" in self.columns:
            raise ValueError("columns.reordered counts words as they stand; it cannot be given with moses")


@dataclass(frozen=True)
class Model(settings.Model):
    """The Transformer, an encoder-decoder, and its position models.

    Attributes:
        decoder_position: name of the decoder's position model, or a list or a mapping as in `position`,
            which is then that of the encoder; null for the same in both.
        decoder_position_options: options of the decoder's position model; empty with a list or a mapping.
    """

    decoder_position: PositionName | None = None
    decoder_position_options: dict[str, Any] = field(default_factory=dict)

    encoder_decoder = True

    def __post_init__(self) -> None:
        if self.decoder_position is not None:
            resolve_position(self, "decoder_position")
        super().__post_init__()

    @property
    def autoregressive(self) -> bool:
        """Return whether the decoder writes one token after another."""
        return catalogue()[self.decoder_position or self.position].autoregressive


@dataclass(frozen=True)
class Training(SmoothedTrainingSettings):
    """Optimisation. Defaults are those of Liu et al. 2020 (their repository) and Vaswani et al. 2017.

    Attributes:
        max_tokens: maximum number of tokens in a batch: padded length of the longer side times sentences.
        generation_num_beams: beam size of the validation; 1 for a model that is not autoregressive.
        samples: number of translations logged at each validation.
        warm_start: finished run that provides the initial weights and the vocabulary (protocol B.2): of
            sinusoids for `floater`; of any encoding for a list of that encoding and an added `floater`.
    """

    label_smoothing_factor: float = 0.1
    generation_num_beams: int = 1
    samples: int = 3
    warm_start: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, samples=0, generation_num_beams=1)
        if self.evaluates == "no":
            check_read(self, ["samples", "generation_num_beams"], "a validation (eval_strategy)")


@dataclass(frozen=True)
class Decoding:
    """Settings of the decoding.

    Attributes:
        beam: number of hypotheses; 1 for a model that is not autoregressive.
        length_penalty: exponent of the length by which scores are divided.
        target_ratio: target length, target_ratio x source tokens, for decoders that read one (ldpe, lrpe,
            noisy_length, pnat); null for the model's own prediction.
        max_ratio: factor of the maximum length, max_ratio x source tokens + 50; the number of translations
            that reach it is reported.
        max_tokens: maximum number of source tokens in a batch, times the beam.
    """

    beam: int = 4
    length_penalty: float = 0.6
    max_ratio: float = 2.0
    max_tokens: int = 8192
    target_ratio: float | None = None

    def __post_init__(self) -> None:
        check_numbers(self, positive=("max_ratio", "max_tokens", "target_ratio"), beam=1)
        if not math.isfinite(self.length_penalty):
            raise ValueError(f"length_penalty is {self.length_penalty}; it must be finite")


@dataclass(frozen=True, kw_only=True)
class TranslationSettings(settings.RunSettings):
    """A translation run.

    Attributes:
        data: source of the sentences.
        decoding: settings of the decoding.
    """

    task: Literal["translation"] = "translation"
    data: Data
    model: Model = field(default_factory=Model)
    training: Training = field(default_factory=Training)
    decoding: Decoding = field(default_factory=Decoding)

    def files_read(self) -> dict[str, Any]:
        parts = [f"{part}{side}" for part in ("train", "valid") for side in ("", "_source", "_target")]
        files = settings.files_of(self.data, *parts, "vocabulary")
        if self.data.dataset is not None and (folder := paths_in(self.data.dataset)):
            files["data.dataset"] = folder
        if (start := self.training.warm_start) is not None:
            files["training.warm_start"] = Part(inside(Path(start), MODEL), ("*.json", "*.safetensors"))
        return files

    def __post_init__(self) -> None:
        super().__post_init__()
        name = "set data.columns.{}, a column of tables"
        settings.check_fields(
            self.model,
            language=(bool(self.data.languages), name.format("language") + ", and data.languages"),
            reordered=("reordered" in self.data.columns, name.format("reordered")),
        )
        decoder = self.model.decoder_position or self.model.position
        if self.decoding.target_ratio is not None and not self.model.position_model("decoder").length_aware:
            raise ValueError(
                f"decoding.target_ratio is {self.decoding.target_ratio:g}, but position model '{decoder}' "
                "reads no target length; ldpe, lrpe, noisy_length and pnat do"
            )
        if self.decoding.beam == self.training.generation_num_beams == 1:
            check_read(self.decoding, ["length_penalty"], "a beam above 1", "decoding.")
        if not self.model.autoregressive:
            for name, beam in (
                ("decoding.beam", self.decoding.beam),
                ("training.generation_num_beams", self.training.generation_num_beams),
            ):
                if beam != 1:
                    raise ValueError(
                        f"{name} is {beam}; it must be 1: position model "
                        f"'{decoder}' writes all tokens at once"
                    )
