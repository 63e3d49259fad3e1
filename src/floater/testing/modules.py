"""Checks of an encoding as a module: copies, saved models, initialisation, compiled code."""

from __future__ import annotations

import copy
import pickle
import tempfile
from typing import Any

import torch
from torch import Tensor
from torch.testing import assert_close

from floater.testing.case import Case, reference
from floater.testing.inputs import MASK, embeddings, mask_positions, randomize_zeros

# whether attention is that of all encodings: these hooks act in it
_ATTENTION_HOOKS = (
    "projection_bias",
    "inputs",
    "qkv",
    "scale",
    "query_gain",
    "residual",
    "bias",
    "logits",
    "weights",
    "mask",
    "value_bias",
    "attention_terms",
)


@torch.no_grad()
def copies(case: Case) -> None:
    """Copies, pickles and, with the reference Transformer, saved models compute the same, bit for bit."""
    if case.blocks == "transformer":
        torch.manual_seed(0)
        model, other = (reference().model(case.name, case.options).eval() for _ in range(2))
        randomize_zeros(model.encoder.position)
    else:
        model, other = case.stack().float(), case.stack().float()
        randomize_zeros(other.position)
    other.load_state_dict(model.state_dict())
    again = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), other]
    if case.blocks == "transformer":
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            again.append(type(model).from_pretrained(folder))

    def outputs(module: Any) -> Tensor:
        stack = getattr(module, "encoder", module).eval()
        out: Tensor = stack(embeddings(*MASK.shape).float(), mask_positions(stack.position, MASK))
        return out

    for each in again:
        if case.blocks == "transformer":
            stored = each.config.position_options
            assert _stores(stored, dict(case.options)), f"options {case.options} are stored as {stored}"
        assert_close(outputs(each), outputs(model), rtol=0, atol=0)


def _stores(stored: Any, value: Any) -> bool:
    """Return whether a stored value is the given one, with defaults of options that it leaves out."""
    if isinstance(stored, dict) and isinstance(value, str):  # an encoding by its name
        value = {"name": value}
    if isinstance(stored, dict) and isinstance(value, dict):
        return all(key in stored and _stores(stored[key], part) for key, part in value.items())
    return bool(stored == value)


def reset(case: Case) -> None:
    """`reset_parameters` initialises every parameter again."""
    model = case.build()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    model.reset_parameters()
    for key, parameter in model.named_parameters():
        assert not bool((parameter == 7.0).any()), f"{key} is not initialised again"


@torch.no_grad()
def compiled(case: Case) -> None:
    """The hooks compile to one graph, unless the card excepts "compile".

    All but `prepare`, which may look at the positions to choose a way or to refuse them.
    """
    stack, x = case.stack(), embeddings(*MASK.shape)
    position, positions = stack.position, mask_positions(stack.position, MASK)
    in_attention = position.overrides(*_ATTENTION_HOOKS)
    state = position.prepare(positions)

    def run(x: Tensor) -> Tensor:
        x = position.block(position.embed(x, state), state, 1)
        return case.attend(stack, x, state, positions, 1) if in_attention else x

    torch.compiler.reset()
    whole = torch.compile(run, fullgraph=True, backend="eager")
    if "compile" not in position.card.exceptions:
        assert_close(whole(x), run(x))
        return
    try:
        whole(x)
    except torch._dynamo.exc.Unsupported:
        return
    raise AssertionError('it compiles, though the card excepts "compile"')
