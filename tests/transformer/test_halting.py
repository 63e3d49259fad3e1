"""Shared layers and per-position halting against a loop over positions."""

import math

import pytest
import torch
from transformer_cases import config, made, tokens
from transformers import DynamicCache

from floater.transformer import (
    FloaterForCausalLM,
    FloaterForConditionalGeneration,
    FloaterForMaskedLM,
    FloaterForSequenceClassification,
    FloaterForTokenClassification,
)
from floater.transformer.halting import Halting

SHARED = {"share_layers": True, "num_hidden_layers": 5, "decoder_layers": 4}
HALTING = SHARED | {"halting": 0.9}
HEADS = (FloaterForCausalLM, FloaterForMaskedLM, FloaterForTokenClassification)


def halting(cls, case="universal", **changes):
    """A model whose positions halt after different numbers of steps."""
    model = made(cls, case, seed=1, **(HALTING | changes))
    for name, module in model.named_modules():
        if isinstance(module, Halting):
            torch.nn.init.normal_(module.probability.weight, std=0.4)
            torch.nn.init.constant_(module.probability.bias, -1.0)
            assert name.endswith("halting")
    return model


def plainly(probabilities, states, threshold):
    """Appendix C of Dehghani et al. for one position: result, number of updates, remainder."""
    total, result, updates, remainder = 0.0, torch.zeros_like(states[0]), 0, 0.0
    for p, state in zip(probabilities, states, strict=True):
        updates += 1
        if total + p > threshold:
            remainder = 1 - total
            return remainder * state + (1 - remainder) * result, updates, remainder
        result = p * state + (1 - p) * result
        total += p
    return result, updates, remainder


def test_halting_is_the_loop_of_the_appendix():
    torch.manual_seed(0)
    module = Halting(4, 0.8).double()
    torch.nn.init.normal_(module.probability.weight)
    module.probability.bias.data.fill_(-1.0)
    x, weight = torch.randn(3, 5, 4).double(), torch.randn(4, 4).double() / 2

    def revise(x, step):
        return torch.tanh(x @ weight) + 0.1 * step

    def signal(x, step):
        return x + 0.2 * step

    found, every = (module(x, 6, revise, signal, every=flag) for flag in (False, True))
    torch.testing.assert_close(found, every)
    states, probabilities, state = [], [], x
    for step in range(6):
        probabilities.append(module.probability(signal(state, step)).sigmoid()[..., 0])
        state = revise(state, step)
        states.append(state)
    taken = set()
    for b in range(3):
        for t in range(5):
            result, updates, remainder = plainly(
                [p[b, t].item() for p in probabilities], [s[b, t] for s in states], 0.8
            )
            torch.testing.assert_close(found.hidden[b, t], result)
            assert found.updates[b, t].item() == updates
            assert found.remainders[b, t].item() == pytest.approx(remainder)
            taken.add(updates)
    assert len(taken) > 2, "positions halt at different steps"
    valid = torch.tensor([[True] * 5, [False] * 2 + [True] * 3, [True] + [False] * 4])
    spent = (found.updates + found.remainders)[valid]
    torch.testing.assert_close(found.cost(valid), spent.sum() / 9)
    assert math.isfinite(found.cost(torch.zeros(3, 5, dtype=torch.bool)).item())


@pytest.mark.parametrize("cls", [*HEADS, FloaterForConditionalGeneration])
def test_one_block_serves_all_layers(cls):
    shared, own = (
        made(cls, "universal", **SHARED),
        made(cls, "universal", **(SHARED | {"share_layers": False})),
    )
    first = {k: v for k, v in shared.state_dict().items() if ".blocks.0." in k}
    assert not any(".blocks.1." in key for key in shared.state_dict())
    copied = own.state_dict()
    for key in copied:
        if ".blocks." in key:
            head, tail = key.split(".blocks.")
            copied[key] = first[f"{head}.blocks.0.{tail.split('.', 1)[1]}"]
        else:
            copied[key] = shared.state_dict()[key]
    own.load_state_dict(copied)
    ids = tokens(2, 6)
    given = {"decoder_input_ids": tokens(2, 5, seed=1)} if cls is FloaterForConditionalGeneration else {}
    torch.testing.assert_close(shared(ids, **given).logits, own(ids, **given).logits)


@pytest.mark.parametrize("cls", [FloaterForMaskedLM, FloaterForTokenClassification])
@torch.no_grad()
def test_a_stack_that_halts_mixes_the_states_of_its_steps(cls):
    model, ids = halting(cls), tokens(2, 6)
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    encoder, seen = model.model.encoder, []
    hook = encoder.blocks[0].register_forward_hook(lambda module, given, out: seen.append((given[0], out)))
    out = model.model(ids, attention_mask=mask)
    hook.remove()
    state = encoder.position.prepare(_positions(mask))
    found, spent = out.last_hidden_state, []
    for b in range(2):
        for t in range(int(mask[b].sum())):
            probabilities = [
                float(encoder.halting.probability(encoder.position.block(x, state, n)[b, t]).sigmoid())
                for n, (x, _) in enumerate(seen)
            ]
            result, updates, remainder = plainly(probabilities, [y[b, t] for _, y in seen], 0.9)
            torch.testing.assert_close(found[b, t], result, rtol=1e-4, atol=1e-5)
            spent.append(updates + remainder)
    assert float(out.auxiliary_loss) == pytest.approx(0.01 * sum(spent) / len(spent), rel=1e-4)
    assert len({int(x) for x in spent}) > 1, "positions halt at different steps"


def _positions(mask):
    from floater import Positions

    return Positions.from_mask(mask)


@pytest.mark.parametrize("cls", [*HEADS, FloaterForSequenceClassification, FloaterForConditionalGeneration])
def test_the_ponder_cost_is_in_the_loss(cls):
    costs, losses = [], []
    labels = torch.tensor([1, 0]) if cls is FloaterForSequenceClassification else tokens(2, 6, seed=2) % 2
    for cost in (0.0, 0.7):
        model = halting(cls, ponder_cost=cost, num_labels=2)
        out = model(tokens(2, 6), labels=labels)
        costs.append(out.auxiliary_loss.item())
        losses.append(out.loss.item())
        if cost:
            out.loss.backward()
            for name, parameter in model.named_parameters():
                if "halting" in name:
                    assert bool(parameter.grad.any()), name
            if cls is not FloaterForSequenceClassification:
                items = 2 * int((labels != -100).sum())
                half = model(tokens(2, 6), labels=labels, num_items_in_batch=items).loss.item()
                own = losses[1] - costs[1]
                count = labels.numel() - (len(labels) if cls is FloaterForCausalLM else 0)
                assert half == pytest.approx(own * count / items + costs[1] / 2, rel=1e-4)
    assert costs[0] == 0
    assert losses[1] - losses[0] == pytest.approx(costs[1], rel=1e-3)


@torch.no_grad()
def test_decoding_with_a_cache_takes_every_step_and_is_the_whole():
    model, ids = halting(FloaterForCausalLM), tokens(2, 9)
    whole, cache, parts = model(ids, use_cache=False).logits, DynamicCache(), []
    for start, stop in ((0, 4), (4, 5), (5, 9)):
        parts.append(model(ids[:, start:stop], past_key_values=cache).logits)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=2e-5)
    assert len(cache.layers) == 5


@pytest.mark.parametrize("beams", [1, 3])
def test_an_encoder_decoder_generates_the_same_with_and_without_a_cache(beams):
    model = halting(FloaterForConditionalGeneration)
    given = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "num_beams": beams}
    assert torch.equal(
        model.generate(tokens(2, 6), **given), model.generate(tokens(2, 6), use_cache=False, **given)
    )


def test_saved_models_halt_alike(tmp_path):
    model = halting(FloaterForCausalLM)
    model.save_pretrained(tmp_path)
    other = FloaterForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(model(tokens(1, 5)).logits, other(tokens(1, 5)).logits)
    fresh = FloaterForCausalLM(config("universal", **HALTING)).model.encoder.halting.probability
    assert fresh.bias.item() == 1.0


def test_a_head_that_would_lose_the_cost_is_refused():
    with pytest.raises(ValueError, match="halting has a cost that this head does not pass on"):
        halting(FloaterForCausalLM).model.hidden(tokens(1, 4))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"halting": 0.9}, "halting needs share_layers=True"),
        ({"halting": 1.0, "share_layers": True}, "halting is 1.0; it must be between 0 and 1"),
        ({"ponder_cost": -1}, "ponder_cost is -1; it must be at least 0"),
        ({"attention": "sparse"}, "attention is 'sparse'; it must be 'softmax' or 'linear'"),
        (
            {"attention": "linear", "attention_dropout": 0.1},
            "attention_dropout is 0.1; linear attention has no weights to drop",
        ),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        config("universal", **changes)


def test_padding_of_a_target_does_not_count_as_steps():
    model = halting(FloaterForConditionalGeneration, dropout=0.0, ponder_cost=1.0).train()
    model.config.pad_token_id = 1
    source, target = torch.tensor([[5, 6, 7]]), torch.tensor([[2, 8, 9]])
    padded = torch.cat((target, torch.ones(1, 9, dtype=torch.long)), 1)
    costs = [model(source, decoder_input_ids=ids).auxiliary_loss for ids in (target, padded)]
    torch.testing.assert_close(*costs)
    labels = torch.tensor([[8, 9, 3]])
    ignored = torch.cat((labels, torch.full((1, 9), -100)), 1)
    costs = [
        model(source, decoder_input_ids=ids, labels=wanted).auxiliary_loss
        for ids, wanted in ((target, labels), (padded, ignored))
    ]
    torch.testing.assert_close(*costs)
