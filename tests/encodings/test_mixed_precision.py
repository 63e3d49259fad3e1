"""FSDP2's mixed precision casts the inputs of wrapped modules: positions pass it in their own precision."""

from functools import partial

import pytest
import torch
from contract_cases import EVERY
from torch.distributed.fsdp._fully_shard._fsdp_common import _cast_fp_tensor
from torch.distributed.utils import _apply_to_tensors

from floater import Positions, catalogue
from floater.testing.inputs import embeddings, mask_positions, randomize_zeros
from floater.testing.reference import config, decoder, encoder
from floater.transformer import FloaterForCausalLM
from floater.transformer.memory import Memory
from floater.transformer.stacks import Decoder, Encoder

BF16 = torch.bfloat16
MASK = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])


def cast_inputs(module, args, kwargs):
    """Cast all that FSDP2 finds (`cast_forward_inputs`)."""
    cast = partial(_cast_fp_tensor, BF16)
    return _apply_to_tensors(cast, args), _apply_to_tensors(cast, kwargs)


def cast_hidden(module, args, kwargs):
    """Cast the hidden states alone."""
    sources = {name: kwargs[name] for name in ("source", "earlier") if kwargs.get(name) is not None}
    kwargs |= {name: each._replace(hidden=each.hidden.to(BF16)) for name, each in sources.items()}
    return (args[0].to(BF16), *args[1:]), kwargs


def wrapped(stack, hook):
    """Return a stack with parameters in bfloat16 and blocks with a hook, as FSDP2 runs them."""
    randomize_zeros(stack)
    for parameter in stack.parameters():
        parameter.data = parameter.data.to(BF16)
    for module in [part for part in stack.modules() if isinstance(part, Encoder | Decoder)]:
        for block in (module, *module.blocks) if hook is cast_inputs else module.blocks:
            block.register_forward_pre_hook(hook, with_kwargs=True)
    return stack.eval()


@torch.no_grad()
def outputs(build, run):
    """Return what a stack computes where all inputs are cast, and where hidden states alone are."""
    results = []
    for hook in (cast_inputs, cast_hidden):
        torch.manual_seed(0)
        results.append(run(wrapped(build(), hook)).float())
    return results


@EVERY
def test_positions_are_not_cast(name, options):
    times = torch.tensor([[0, 0.3, 1.7, 2.1, 3.0, 4.4, 5.2]], dtype=torch.float64)
    real = "real" not in catalogue()[name].card.exceptions

    def run(stack):
        positions = mask_positions(stack.position, MASK)
        if real:
            positions = positions.but(query=times, key=times, reordered=times)
        return stack(embeddings(2, 7).to(BF16), positions)

    cast, kept = outputs(lambda: encoder(name, options), run)
    assert bool(kept.isfinite().all())
    assert torch.equal(cast, kept)


@pytest.mark.parametrize("name", ["floater", "rotary", "complex", "sinusoidal", "shaw"])
def test_positions_of_source_and_target_are_not_cast(name):
    def run(stack):
        target, source = embeddings(2, 5).to(BF16), embeddings(2, 7).to(BF16)
        return stack(target, Positions.arange(5), source, Positions.from_mask(MASK))

    cast, kept = outputs(lambda: decoder(name, {}), run)
    assert torch.equal(cast, kept)


@pytest.mark.parametrize("name", ["rotary", "transformer_xl"])
def test_positions_of_earlier_segments_are_not_cast(name):
    def run(model):
        memory = Memory(4)
        return torch.cat([model(ids, memory=memory).logits for ids in torch.arange(1, 9).view(2, 1, 4)], 1)

    cast, kept = outputs(lambda: FloaterForCausalLM(config(name, {}, is_decoder=True)), run)
    assert torch.equal(cast, kept)


def test_positions_are_a_value_that_mixed_precision_passes_by():
    positions = Positions.events(torch.tensor([[1325476708, 1325476709, 1325480000]]))
    (same,) = _apply_to_tensors(partial(_cast_fp_tensor, BF16), (positions,))
    assert same is positions
