"""Checks of numbers: precision, kernels, autocast, and inputs of unusual sizes."""

from __future__ import annotations

import itertools

import torch
from torch.testing import assert_close

from floater.encodings.measure import positions_for, respond
from floater.positions import Positions
from floater.testing.case import Case
from floater.testing.inputs import MASK, SIZES, embeddings, mask_positions, randomize_zeros
from floater.testing.refusals import refuses


@torch.no_grad()
def single_precision(case: Case) -> None:
    """Outputs in single precision are close to those in double precision."""
    stack, x = case.stack(), embeddings(*MASK.shape)
    positions = mask_positions(stack.position, MASK)
    double = stack(x, positions)
    single = stack.float()(x.float(), positions).double()
    assert_close(single[MASK.bool()], double[MASK.bool()], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def kernels(case: Case) -> None:
    """The fused kernel computes what plain PyTorch does, at real positions if the encoding supports them."""
    case.require_transformer()
    from floater.testing.reference import use_kernel

    stack, x = case.stack(), embeddings(*MASK.shape)
    positions = mask_positions(stack.position, MASK)
    if "real" not in stack.position.card.exceptions:
        times = positions.query.double()
        positions = positions.but(query=times, key=times)
    for dtype, tolerance in ((torch.float64, 1e-6), (torch.float32, 1e-4), (torch.bfloat16, 0.2)):
        outputs = []
        for kernel in ("sdpa", "eager"):
            use_kernel(stack, kernel)
            outputs.append(stack.to(dtype)(x.to(dtype), positions)[MASK.bool()])
        assert_close(*outputs, rtol=0, atol=tolerance)


@torch.no_grad()
def autocast(case: Case) -> None:
    """Autocast rounds no angle: products at position 1000 have the eight significant bits of bfloat16."""
    torch.manual_seed(0)
    model = case.build(max_length=64).eval()
    randomize_zeros(model)
    if hasattr(case.encoding, "needs"):
        positions = mask_positions(model, MASK[:1])
    else:
        positions = _far_positions(positions_for(model, 7), model.max_positions)
    x = embeddings(1, 7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = respond(model, positions, x.float())
    double = respond(model.double(), positions, x)
    for a, b in zip(itertools.chain(*mixed), itertools.chain(*double), strict=True):
        # products have eight significant bits; an angle would have none
        assert_close(a.double(), b, rtol=0, atol=0.03 * float(b[b.isfinite()].abs().max()))


def _far_positions(positions: Positions, bound: int | None) -> Positions:
    """Return positions up to 1000, of which bfloat16 has every fourth, or up to a bound."""
    at = torch.tensor([[0, 1, 5, 499, 500, 990, 1000]])
    if bound is not None:
        at = at.clamp(max=bound - 1)
    return positions.but(
        query=at,
        key=at,
        reordered=at,
        target_length=torch.tensor([9000]),
        token=at % SIZES["vocabulary"],
        segment=at % 2,
    )


@torch.no_grad()
def bound(case: Case) -> None:
    """A bounded encoding refuses positions past its end; any other accepts four times `max_length`."""
    stack, length = case.stack(), SIZES["max_length"]
    end, long = stack.position.max_positions, torch.ones(1, 4 * length, dtype=torch.long)
    if end is None or end > long.shape[1]:
        out = stack(embeddings(*long.shape), mask_positions(stack.position, long))
        assert bool(out.isfinite().all()), "outputs are not finite"
        return
    assert end == length, f"max_positions is {end}; it must be max_length {length}"
    stack(embeddings(1, end), mask_positions(stack.position, long[:, :end]))
    with refuses(rf"\b{end}\b.* was requested|max_length {end}\b"):
        stack(embeddings(1, end + 1), mask_positions(stack.position, long[:, : end + 1]))


@torch.no_grad()
def empty(case: Case) -> None:
    """Empty batches, empty texts and single tokens work, in training and in evaluation."""
    stack = case.stack()
    structured = hasattr(case.encoding, "needs")  # the number of nodes of no trees is unknown
    for rows, length, training in itertools.product((2,) if structured else (0, 2), (0, 1), (True, False)):
        positions = mask_positions(stack.position, torch.ones(rows, length, dtype=torch.long))
        out = stack.train(training)(embeddings(rows, length), positions)
        assert out.shape == (rows, length, SIZES["dim"]), f"{rows} rows of {length} tokens: {out.shape}"
        assert bool(out.isfinite().all()), f"{rows} rows of {length} tokens: not finite"


@torch.no_grad()
def real(case: Case) -> None:
    """Real positions act by their values, or are refused if the card excepts "real"."""
    stack, x = case.stack(), embeddings(1, 7)
    whole = mask_positions(stack.position, MASK[:1])

    def times(factor: float) -> Positions:
        scaled = factor * whole.query.double()
        return whole.but(query=scaled, key=scaled, reordered=scaled)

    if "real" in stack.position.card.exceptions:
        with refuses(r"real (positions|times) need a model"):
            stack(x, times(1.0))
        return
    same = whole.but(reordered=whole.query)
    # whole positions have angles of single precision
    assert_close(stack(x, times(1.0)), stack(x, same), rtol=1e-5, atol=1e-5)
    between = stack(x, times(0.3))
    assert bool(between.isfinite().all()), "outputs are not finite"
    order_alone = case.order_alone or hasattr(case.encoding, "needs")
    unchanged = torch.allclose(between, stack(x, same))
    act = "no value of a position acts; say so by order_alone" if unchanged else "values of positions act"
    assert unchanged == order_alone, act
