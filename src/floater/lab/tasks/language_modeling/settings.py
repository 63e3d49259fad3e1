"""Settings of a language modelling run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from floater.lab.tasks.settings import Model, RunSettings, check_block, files_of
from floater.lab.text.bpe import BYTES, SPECIALS
from floater.lab.training.settings import check_numbers, check_read
from floater.transformer.memory import check_memory


@dataclass(frozen=True)
class TextData:
    """Source of the text, and its division into documents and rows.

    Attributes:
        train: file or list of files of the training text: UTF-8 text, or tables (CSV, TSV, JSON, JSON Lines,
            Parquet), plain or compressed; a folder or "hf:NAME" of a data set of Hugging Face.
        valid: file or list of files of the validation text.
        columns: names of the columns of a table that are read, as in {text: body}; by default guessed. The
            rows with the same value in a column `document` are one document.
        documents: end of a document, besides that of a file: a "blank line" (in a table, a row), each "line",
            or nothing more, "file". A row of training contains one document or a part of it.
        block: maximum number of tokens of a row, special tokens included.
    """

    train: str | list[str]
    valid: str | list[str]
    columns: dict[str, str] = field(default_factory=dict)
    documents: Literal["blank line", "line", "file"] = "blank line"
    block: int = 512

    def __post_init__(self) -> None:
        check_numbers(self, block=8)


@dataclass(frozen=True)
class Data(TextData):
    """Source of the text, and its division into documents and rows.

    Attributes:
        documents: end of a document, besides that of a file: a "blank line" (in a table, a row), each "line",
            or nothing more, "file". Attention and positions are restricted to a document.
        block: maximum number of tokens of a training row, which is filled with whole lines; longer lines are
            cut, and their number is logged.
        full_sentences: true to fill rows with the sentences of consecutive documents, with </s> between
            documents; attention and positions then cross the boundaries of documents (FULL-SENTENCES of Liu
            et al. 2019, RoBERTa, section 4.2, which Ke et al. 2021 follow).
        pack: true to share a row among documents; false gives each part of a document a row of its own, as
            required by models that process the tokens of a row in sequence (rnn_transformer, convolution).
        memory: number of tokens before each row that the blocks of a causal model also attend to, without
            gradients: the segment memory of transformer_xl, the previous subsequence of shortformer, or that
            of any relative model. Rows are then cut from the running text, regardless of sentences, and read
            in order in training.per_device_train_batch_size streams, or training.max_tokens / block. 0 for no
            memory.
        vocabulary: run directory or tokenizer.json to load; by default a vocabulary is trained.
        vocabulary_size: number of BPE tokens to train; at least 259, the bytes and the special tokens.
        lowercase: true for a vocabulary that lower-cases all texts, those of later tasks included; one that
            is loaded must do so.
    """

    full_sentences: bool = False
    pack: bool = True
    memory: int = 0
    vocabulary: str | None = None
    vocabulary_size: int = 32768
    lowercase: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, memory=0, vocabulary_size=BYTES + len(SPECIALS))
        if self.full_sentences and (self.memory or not self.pack):
            other = "pack is false" if not self.pack else f"memory is {self.memory}"
            raise ValueError(f"full_sentences is true and {other}; rows either cross documents or do not")
        if self.vocabulary is not None:
            check_read(self, ["vocabulary_size"], "a run without data.vocabulary")
        if self.memory:
            check_read(self, ["pack"], "a run without data.memory")


@dataclass(frozen=True)
class Masking:
    """Settings of BERT's masking: shares of predicted, masked and random tokens (Devlin et al. 2019, 3.1).

    Attributes:
        rate: share of the tokens of a row that are predicted, at least one.
        mask: share of the predicted tokens that are replaced by <mask>.
        random: share of the predicted tokens that are replaced by a random token; the others are not changed.
    """

    rate: float = 0.15
    mask: float = 0.8
    random: float = 0.1

    def __post_init__(self) -> None:
        check_numbers(self, positive=("rate",), mask=0, random=0)
        if self.rate > 1 or self.mask + self.random > 1:
            raise ValueError(
                f"rate {self.rate} and mask + random {self.mask + self.random} must be at most 1"
            )


@dataclass(frozen=True)
class Evaluation:
    """Settings of the evaluation of perplexity, in validation and in `floater evaluate`.

    Attributes:
        window: number of tokens in the input of a causal model, or of a row of a masked one; null takes
            data.block.
        stride: number of tokens that a causal model's window moves by and then predicts, smaller than the
            window. Null takes half of the window, or if it is longer than data.block all but one token, so
            that tokens are predicted at every position. With a memory, the stride is always the window, and
            must be null.
        memory: number of tokens before the window in the memory of a causal model's blocks; null takes
            data.memory.
        max_tokens: maximum number of tokens in a batch.
        seed: seed of the choice of masked tokens.
    """

    window: int | None = None
    stride: int | None = None
    memory: int | None = None
    max_tokens: int = 4096
    seed: int = 0

    def __post_init__(self) -> None:
        check_numbers(self, positive=("stride", "max_tokens"), window=8, seed=0, memory=0)
        if self.memory and self.stride:
            raise ValueError(f"stride is {self.stride}; with a memory of {self.memory} tokens there is none")

    def windows(self, block: int) -> tuple[int, int]:
        """Return window and stride for training rows of `block` tokens.

        Raises:
            ValueError: if the stride is not below the window.

        Example:
            >>> Evaluation().windows(512), Evaluation(stride=1).windows(64)
            ((512, 256), (64, 1))
            >>> Evaluation(window=2048).windows(128)
            (2048, 2047)
        """
        window = self.window or block
        stride = self.stride or (window // 2 if window <= block else window - 1)
        if stride >= window:
            raise ValueError(f"stride is {stride}; it must be below the window, {window}")
        return window, stride


@dataclass(frozen=True, kw_only=True)
class LanguageModelingSettings(RunSettings):
    """A language modelling run.

    Attributes:
        objective: "causal" to predict each token from those before it, "masked" to predict some from all
            others.
        data: source of the text, and its division into rows.
        masking: choice of the tokens that a masked language model predicts.
        evaluation: measurement of perplexity.
    """

    task: Literal["language_modeling"] = "language_modeling"
    data: Data
    objective: Literal["causal", "masked"] = "causal"
    model: Model = field(default_factory=Model)
    masking: Masking = field(default_factory=Masking)
    evaluation: Evaluation = field(default_factory=Evaluation)

    def files_read(self) -> dict[str, Any]:
        return files_of(self.data, "train", "valid", "vocabulary")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective == "causal":
            check_read(self.masking, ["rate", "mask", "random"], "objective 'masked'", "masking.")
            check_read(self.evaluation, ["seed"], "objective 'masked'", "evaluation.")
        else:
            check_read(self.evaluation, ["stride"], "objective 'causal'", "evaluation.")
        window, _ = self.evaluation.windows(self.data.block)
        memory = self.data.memory
        later = memory if self.evaluation.memory is None else self.evaluation.memory
        if (memory or later) and self.objective != "causal":
            raise ValueError(f"data.memory is {memory}, evaluation's {later}; only a causal model has one")
        if memory or later:
            check_memory(self.model.position_model(), causal=True)
        if later and self.evaluation.stride:
            raise ValueError(f"evaluation.stride is {self.evaluation.stride}; with a memory there is none")
        for name, tokens, held in (
            ("data.block", self.data.block, memory),
            ("evaluation.window", window, later),
        ):
            name += " and memory" * bool(held)
            self.model.check_reach(tokens + held, f"{name} is {tokens + held}")
        check_block(f"data.block is {self.data.block}", self.data.block, self.training)
