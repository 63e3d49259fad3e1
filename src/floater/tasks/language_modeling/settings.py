"""The settings of a language modelling run: what a configuration file may say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from floater.tasks.settings import Model, RunSettings, check_block
from floater.text.bpe import BYTES, SPECIALS
from floater.training.settings import check_numbers
from floater.transformer.memory import check_memory


@dataclass(frozen=True)
class TextData:
    """Source of the text, and its division into documents and rows.

    Attributes:
        train: training text, UTF-8, plain or .gz; a file or a list of files.
        valid: validation text.
        documents: what ends a document, besides the end of a file: a "blank line", each "line", or nothing
            more, "file". A row holds one document or a part of it.
        block: tokens of a row, special ones included.
    """

    train: str | list[str]
    valid: str | list[str]
    documents: Literal["blank line", "line", "file"] = "blank line"
    block: int = 512

    def __post_init__(self) -> None:
        check_numbers(self, block=8)


@dataclass(frozen=True)
class Data(TextData):
    """Source of the text, and its division into documents and rows.

    Attributes:
        documents: what ends a document, besides the end of a file: a "blank line", each "line", or nothing
            more, "file". Attention and positions stay within a document.
        block: tokens of a training row, filled with whole lines; the number of longer lines, which are cut,
            is logged.
        full_sentences: fill rows with the sentences of one document after the other, with </s> between them;
            attention and positions then cross the borders of documents (FULL-SENTENCES of Liu et al. 2019,
            RoBERTa, section 4.2, which Ke et al. 2021 follow).
        pack: share a row among documents; false gives each part of a document a row of its own, as models
            need that read over the tokens of a row (rnn_transformer, convolution).
        memory: tokens before each row that the blocks of a causal model read besides it, without gradients:
            the segment memory of transformer_xl, the previous subsequence of shortformer, or that of any
            relative model. Rows are then cut from the running text, whole or not, and read in order in
            training.per_device_train_batch_size streams, or training.max_tokens / block. 0 means none.
        vocabulary: a run directory or tokenizer.json to load; by default one is trained.
        vocabulary_size: BPE tokens to train; at least 259, the bytes and the special tokens.
        lowercase: whether that vocabulary lower-cases all it encodes, texts of later tasks included.
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


@dataclass(frozen=True)
class Masking:
    """Settings of BERT's masking: shares of predicted, masked and random tokens (Devlin et al. 2019, 3.1).

    Attributes:
        rate: share of the tokens of a row that are predicted, at least one.
        mask: share of those that are read as <mask>.
        random: share of those that are read as any token; the rest is read as it is.
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
        window: tokens that a causal model sees at once, and of a row of a masked one; null is data.block.
        stride: tokens that a causal model's window moves by, and that it predicts then; below the window.
            Null is half of the window, or of one longer than data.block all but a token, so that tokens are
            predicted at every place. With a memory it moves by itself, and null is all there is.
        memory: tokens before the window that the blocks of a causal model remember; null is data.memory.
        max_tokens: tokens in a batch.
        seed: of the tokens that are masked.
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
        objective: "causal" predicts each token from those before it, "masked" some from all others.
        data: where the text comes from, and how it is cut.
        masking: which tokens a masked language model predicts.
        evaluation: how perplexity is measured.
    """

    task: Literal["language_modeling"] = "language_modeling"
    data: Data
    objective: Literal["causal", "masked"] = "causal"
    model: Model = field(default_factory=Model)
    masking: Masking = field(default_factory=Masking)
    evaluation: Evaluation = field(default_factory=Evaluation)

    def __post_init__(self) -> None:
        super().__post_init__()
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
