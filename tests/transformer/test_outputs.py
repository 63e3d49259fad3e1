"""Outputs of the models besides logits, and positions by Hugging Face's ids."""

import pytest
import torch
from transformer_cases import VOCABULARY, build_model, config

from floater import Positions
from floater.transformer import (
    FloaterForCausalLM,
    FloaterForConditionalGeneration,
    FloaterForMaskedLM,
    FloaterForMultipleChoice,
    FloaterForQuestionAnswering,
    FloaterForSequenceClassification,
    FloaterForTokenClassification,
    FloaterModel,
)
from floater.transformer.attention import SharedInputs
from floater.transformer.uncast import Uncast

HEADS = (
    FloaterModel, FloaterForCausalLM, FloaterForMaskedLM, FloaterForSequenceClassification,
    FloaterForTokenClassification, FloaterForQuestionAnswering,
)  # fmt: skip
IDS = torch.randint(3, VOCABULARY, (2, 6), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("cls", HEADS)
def test_states_and_weights_of_every_head(cls, norm_first):
    model = build_model(cls, "floater", norm_first=norm_first).eval()
    model.set_attn_implementation("eager")
    plain = model(IDS)
    out = model(IDS, output_hidden_states=True, output_attentions=True)
    assert torch.equal(out[0], plain[0])
    assert plain.hidden_states is None
    assert plain.attentions is None
    base = model if cls is FloaterModel else model.model
    assert len(out.hidden_states) == base.config.num_hidden_layers + 1
    assert torch.equal(out.hidden_states[-1], base(IDS).last_hidden_state)
    # a state is what the next block makes its own of
    layer, state = 1, base.encoder.position.prepared(Positions.arange(6))
    again = base.encoder.blocks[layer](
        out.hidden_states[layer], SharedInputs(base.encoder.position, Uncast(state))
    )
    torch.testing.assert_close(base.encoder.norm(again), out.hidden_states[-1])
    for weights in out.attentions:
        assert weights.shape == (2, 2, 6, 6)
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 6))
        if cls is FloaterForCausalLM:
            assert not weights.triu(1).any()


def test_states_and_weights_of_an_encoder_decoder():
    model = build_model(FloaterForConditionalGeneration).eval()
    model.set_attn_implementation("eager")
    target = IDS[:, :4]
    out = model(IDS, decoder_input_ids=target, output_hidden_states=True, output_attentions=True)
    assert [len(out[name]) for name in ("encoder_hidden_states", "decoder_hidden_states")] == [3, 4]
    assert torch.equal(out.encoder_hidden_states[-1], out.encoder_last_hidden_state)
    assert torch.equal(model.lm_head(out.decoder_hidden_states[-1]), out.logits)
    assert [weights.shape for weights in out.cross_attentions] == [(2, 2, 4, 6)] * 3
    assert [weights.shape for weights in out.encoder_attentions] == [(2, 2, 6, 6)] * 2
    assert [weights.shape for weights in out.decoder_attentions] == [(2, 2, 4, 4)] * 3
    written = model.generate(
        IDS, max_new_tokens=3, min_new_tokens=3, output_attentions=True, output_hidden_states=True,
        return_dict_in_generate=True,
    )  # fmt: skip
    assert len(written.cross_attentions) == 3
    assert len(written.encoder_hidden_states) == 3


def test_states_of_a_shared_block_are_those_of_every_step():
    model = build_model(FloaterModel, share_layers=True, num_hidden_layers=4).eval()
    assert len(model(IDS, output_hidden_states=True).hidden_states) == 5


def test_the_configuration_may_ask():
    model = build_model(FloaterModel, output_hidden_states=True).eval()
    assert len(model(IDS).hidden_states) == 3
    assert model(IDS, output_hidden_states=False).hidden_states is None


def test_weights_that_are_not_computed_are_refused():
    with pytest.raises(ValueError, match="attn_implementation='eager'"):
        build_model(FloaterModel, "sinusoidal").eval()(IDS, output_attentions=True)
    linear = build_model(FloaterModel, "sinusoidal", attention="linear").eval()
    with pytest.raises(ValueError, match="'linear' has no weights"):
        linear(IDS, output_attentions=True)
    assert not any(module._forward_hooks for module in linear.modules())


@pytest.mark.parametrize("cls", [FloaterModel, FloaterForCausalLM, FloaterForTokenClassification])
def test_position_ids_are_positions(cls):
    model = build_model(cls).eval()
    ids = torch.tensor([[0, 1, 2, 0, 1, 5]])
    expected = model(IDS, positions=Positions(ids, ids))[0]
    assert torch.equal(model(IDS, position_ids=ids)[0], expected)
    assert torch.equal(model(IDS, position_ids=torch.arange(6)[None])[0], model(IDS)[0])
    assert not torch.equal(expected, model(IDS)[0])


def test_position_ids_beside_padding_and_a_cache():
    model = build_model(FloaterForCausalLM).eval()
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    ids = (mask.cumsum(1) - 1).clamp(min=0)
    whole = model(IDS, attention_mask=mask).logits
    torch.testing.assert_close(model(IDS, attention_mask=mask, position_ids=ids).logits, whole)
    first = model(IDS[:, :5], attention_mask=mask[:, :5], use_cache=True)
    last = {"attention_mask": mask, "past_key_values": first.past_key_values}
    with pytest.raises(ValueError, match="must continue their positions"):
        model(IDS[:, 5:], position_ids=ids[:, 5:] + 1, **last)
    actual = model(IDS[:, 5:], position_ids=ids[:, 5:], **last).logits
    torch.testing.assert_close(actual[:, 0], whole[:, 5], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.arange(5)[None], r"\(1, 5\) of torch.int64; they must be \(2, 6\)"),
        (torch.arange(6.0)[None], "torch.float32"),
        (torch.arange(-1, 5)[None], "begin at -1"),
    ],
)
def test_position_ids_that_are_none(ids, message):
    with pytest.raises(ValueError, match=message):
        build_model(FloaterModel)(IDS, position_ids=ids)


def test_positions_and_ids_are_not_given_both():
    with pytest.raises(ValueError, match="not both"):
        build_model(FloaterModel)(IDS, position_ids=torch.arange(6)[None], positions=Positions.arange(6))


def test_multiple_choice_returns_states():
    model = FloaterForMultipleChoice(config()).eval()
    out = model(IDS[None], output_hidden_states=True)
    assert len(out.hidden_states) == 3
