"""Heads for spans and for choices: equal to their parts, padded or not, and found by transformers."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModelForMultipleChoice, AutoModelForQuestionAnswering

from floater import Positions
from floater.transformer import FloaterConfig, FloaterForMultipleChoice, FloaterForQuestionAnswering

CONFIG = FloaterConfig.preset("tiny", vocab_size=50, num_hidden_layers=1, dropout=0.0)
IDS = torch.tensor([[5, 6, 7, 0], [8, 9, 10, 11]])
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])


def test_a_span_is_scored_as_without_padding_and_its_loss_is_the_mean_of_both_ends() -> None:
    torch.manual_seed(0)
    model = FloaterForQuestionAnswering(CONFIG).eval()
    start, end = torch.tensor([1, 3]), torch.tensor([2, 3])
    out = model(IDS, MASK, start_positions=start, end_positions=end)
    alone = model(IDS[:1, :3])
    assert torch.allclose(out.start_logits[0, :3], alone.start_logits[0], atol=1e-5)
    assert torch.allclose(out.end_logits[0, :3], alone.end_logits[0], atol=1e-5)
    expected = (F.cross_entropy(out.start_logits, start) + F.cross_entropy(out.end_logits, end)) / 2
    assert torch.allclose(out.loss, expected)
    with pytest.raises(ValueError, match="give both start_positions and end_positions"):
        model(IDS + CONFIG.vocab_size, start_positions=start)  # refused before the words are read


def test_a_choice_is_scored_by_itself() -> None:
    torch.manual_seed(0)
    model = FloaterForMultipleChoice(CONFIG).eval()
    ids, mask = IDS[None].expand(3, 2, 4), MASK[None].expand(3, 2, 4)
    out = model(ids, mask, labels=torch.tensor([0, 1, 1]))
    assert out.logits.shape == (3, 2)
    assert torch.allclose(out.logits[0, 0], model(IDS[None, :1, :3]).logits[0, 0], atol=1e-5)
    assert torch.allclose(out.loss, F.cross_entropy(out.logits, torch.tensor([0, 1, 1])))
    placed = model(ids, positions=Positions.from_mask(mask.flip(-1).flatten(0, 1))).logits
    assert torch.allclose(placed, model(ids, mask.flip(-1)).logits, atol=1e-5)
    embeds = model.model.embedding(ids)
    assert torch.allclose(model(inputs_embeds=embeds, attention_mask=mask).logits, out.logits, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "auto"),
    [
        (FloaterForQuestionAnswering, AutoModelForQuestionAnswering),
        (FloaterForMultipleChoice, AutoModelForMultipleChoice),
    ],
)
def test_transformers_finds_them(tmp_path: Path, kind: type, auto: type) -> None:
    model = kind(CONFIG)
    model.save_pretrained(tmp_path)
    loaded = auto.from_pretrained(tmp_path)
    assert type(loaded) is kind
    weights = loaded.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    with pytest.raises(ValueError, match="needs is_decoder=False"):
        kind(FloaterConfig.preset("tiny", vocab_size=9, is_decoder=True))
