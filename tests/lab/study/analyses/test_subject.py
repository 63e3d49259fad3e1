"""Subjects of analyses: checkpoints that lack weights, the parts of a model that run, its mode afterwards."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoModel,
    BartConfig,
    BartForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    GPT2Config,
    GPT2LMHeadModel,
)

import floater
from floater.errors import DataError
from floater.lab.study.analyses import (
    Options,
    curves,
    draw,
    kinds,
    load_subject,
    positional_logits,
    probe,
    vectors,
)
from floater.lab.study.analyses.subject import run_tokens
from floater.lab.training.files import write_json
from floater.lab.training.run import LONGEST, MODEL, RESULT
from floater.transformer import FloaterConfig, FloaterForMultipleChoice, FloaterModel
from floater.transformer.documents import DocumentsConfig, FloaterForDocuments

SMALL = {"hidden_size": 16, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2}
BERT = BertConfig(**SMALL, vocab_size=20, max_position_embeddings=24)
BART = BartConfig(
    vocab_size=20,
    max_position_embeddings=24,
    d_model=16,
    encoder_layers=1,
    decoder_layers=1,
    encoder_ffn_dim=8,
    decoder_ffn_dim=8,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
)


def test_a_checkpoint_whose_weights_do_not_fit_is_refused(tmp_path: Path) -> None:
    """A model of torch.compile has other names for its weights; AutoModel would draw them anew."""
    BertForMaskedLM(BERT).save_pretrained(tmp_path)
    assert isinstance(
        load_subject(tmp_path).model, AutoModel.from_pretrained(tmp_path).__class__
    )  # no pooler
    file = tmp_path / "model.safetensors"
    save_file({f"_orig_mod.{name}": x for name, x in load_file(file).items()}, file, {"format": "pt"})
    with pytest.raises(DataError, match=r"weights of a BertModel are not there, such as embeddings") as told:
        load_subject(tmp_path)
    assert "; one that is has the name _orig_mod." in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("plugged", [False, True])
def test_a_model_that_chooses_is_looked_at_without_its_head(plugged: bool) -> None:
    torch.manual_seed(0)
    model = BertForMultipleChoice(BERT)
    if plugged:
        floater.plug(model, start="small")
    actual = ["vectors", "permuted_vectors", "similarity", "smoothness", "attention"]
    shown = [*actual, "same_word", *["flow"] * plugged, "probe"]
    assert kinds(model) == shown
    assert vectors(model, "bert.embeddings.position_embeddings", 5).shape == (5, 16)


def test_a_model_of_choices_of_our_own_is_probed() -> None:
    config = FloaterConfig(**SMALL, vocab_size=20, training_length=8, position="learned")
    model = FloaterForMultipleChoice(config)
    assert list(probe(model, 4, rows=8).fits) == ["input", "block 1", "block 2"]
    with pytest.raises(DataError, match="has no flow; floater plot shows: vectors"):
        draw(model, "flow")


def test_no_head_of_a_language_model_is_run() -> None:
    model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=20, n_positions=24))
    model.lm_head = nn.Identity()
    model.lm_head.register_forward_hook(lambda *_: pytest.fail("the head was run"))
    assert len(kinds(model)) == 7


@pytest.mark.parametrize("kind", [BertForMaskedLM, BartForSequenceClassification])
def test_outputs_are_read_whatever_the_configuration_returns(kind: Any) -> None:
    torch.manual_seed(0)
    model = kind(BERT if kind is BertForMaskedLM else BART).eval()
    expected = run_tokens(model, torch.arange(3, 8)[None])[-1]
    model.config.return_dict = False
    assert torch.equal(run_tokens(model, torch.arange(3, 8)[None])[-1], expected)
    assert len(kinds(BertForMaskedLM(BertConfig(**BERT.to_dict() | {"return_dict": False})))) == 6


def test_a_model_is_left_in_the_mode_that_it_was_in() -> None:
    config = FloaterConfig(**SMALL, vocab_size=20, training_length=8, position="floater", dropout=0.5)
    torch.manual_seed(0)
    model = FloaterModel(config).train()
    model.encoder.blocks[0].eval()  # as one that is frozen
    before = {name: module.training for name, module in model.named_modules()}
    actual = probe(model, 4, rows=8)
    logits = positional_logits(model, 4)["block 1"]
    for look in (lambda: vectors(model, length=4), lambda: curves(model, 4, 3), lambda: kinds(model)):
        look()
    with pytest.raises(DataError):
        draw(model, "vectors", Options("nowhere"))
    assert {name: module.training for name, module in model.named_modules()} == before
    model.eval()
    assert probe(model, 4, rows=8) == actual
    assert torch.equal(positional_logits(model, 4)["block 1"], logits)


def test_the_longest_document_is_no_number_of_positions(tmp_path: Path) -> None:
    """It is in words; one level counts those of a sentence, the other sentences."""
    config = DocumentsConfig(
        **SMALL, vocab_size=20, num_labels=2, training_length=12, word_length=8, word_position="learned"
    )
    FloaterForDocuments(config).save_pretrained(tmp_path / MODEL)
    write_json(tmp_path / RESULT, {LONGEST: 300})
    of = load_subject(tmp_path)
    assert (of.trained_at("words input"), of.trained_at("encoder block 1 query")) == (8, 12)


def test_each_level_of_documents_ends_where_its_own_positions_do() -> None:
    config = DocumentsConfig(
        **SMALL, vocab_size=20, num_labels=2, training_length=12, word_length=8, word_position="learned"
    )
    model = FloaterForDocuments(config).eval()
    assert vectors(model, "words input").shape == (8, 16)
    assert vectors(model, "encoder input").shape == (12, 16)
    sizes = {site: logits.shape[-1] for site, logits in positional_logits(model).items()}
    assert (sizes["words block 1"], sizes["encoder block 1"]) == (8, 12)
