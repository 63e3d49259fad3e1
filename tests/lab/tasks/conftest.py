"""A tiny BERT with its tokenizer, as somebody else might have trained it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from floater.lab.cli import main
from floater.lab.training.messages import show_messages

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["good", "bad", "film", "the", "a", "is", "was", "not", "it", "rome", "bonn", "in", "city", "where"]
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,?'\""


@pytest.fixture(scope="session", autouse=True)
def _messages() -> None:
    """Messages of the library are shown, as on the command line."""
    show_messages()


@pytest.fixture
def said(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that a person has got wrong, which writes no run "new", and return its message."""

    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert main(arguments) == 2
        assert not (folder / "new").exists()
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.startswith("floater: ")
        return last.removeprefix("floater: ")

    return run


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a BERT of two blocks for masked tokens, and a WordPiece tokenizer; read only."""
    folder = tmp_path_factory.mktemp("bert") / "checkpoint"
    pieces = [*SPECIALS, *LETTERS, *(f"##{letter}" for letter in LETTERS), *WORDS]
    words = models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]")
    tokenizer = Tokenizer(words)
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **{f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")},
    )
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(pieces),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.1,
    )
    BertForMaskedLM(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder
