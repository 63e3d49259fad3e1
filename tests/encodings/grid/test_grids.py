"""Encodings of grids against transformers, interpolation of images, and loops over patches."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch import nn
from torch.nn import functional as F
from transformers import Qwen2VLTextConfig, Qwen3VLTextConfig
from transformers.models.qwen2_vl import modeling_qwen2_vl
from transformers.models.qwen3_vl import modeling_qwen3_vl
from transformers.models.vit_mae.modeling_vit_mae import build_2d_sinusoidal_position_embedding

from floater import PositionError, Positions, build
from floater.encodings import AttentionContext
from floater.encodings.grid.liere import rotation

SIZES = {"dim": 32, "heads": 2, "layers": 2, "max_length": 8}
GRIDS = (
    "rotary_axial",
    "rotary_mixed",
    "alibi_grid",
    "sinusoidal_grid",
    "learned_grid",
    "floater_grid",
    "liere",
)


def rotated(model, positions, layer=1):
    """Products of the same random queries and keys at every patch, (heads, T, T)."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, 2, 16, generator=generator).expand(2, 1, positions.query.shape[1], 2, 16)
    q, k, _ = model.qkv(q, k, k, AttentionContext(model.prepare(positions), layer))
    return torch.einsum("bthd,bshd->hts", q, k)


def test_patches_stand_row_by_row_and_scaled_grids_cover_the_same_image():
    positions = Positions.grid(2, 3, 4)
    assert positions.coordinates[0, 17].tolist() == [1, 1, 1]
    assert positions.query[0].tolist() == list(range(24))
    fine = Positions.grid(8, 4, like=(4, 4)).coordinates[0].view(8, 4, 2)
    ramp = torch.arange(4.0)[None, None, :, None].expand(1, 1, 4, 4)
    wanted = F.interpolate(ramp, size=(8, 4), mode="bilinear", align_corners=False)[0, 0]
    torch.testing.assert_close(fine[..., 0], wanted)
    assert fine[..., 1].tolist() == [[0, 1, 2, 3]] * 8
    moved = positions.repeat(3).to("cpu")
    assert torch.equal(moved.coordinates, positions.coordinates)


@pytest.mark.parametrize(
    ("sizes", "like", "message"),
    [
        ((), None, r"sizes is \(\); it must be whole numbers of patches along each axis"),
        ((2.5, 2), None, r"sizes is \(2.5, 2\); it must be whole numbers of patches along each axis"),
        ((2, 0), None, r"sizes is \(2, 0\)"),
        ((2, 2), (2,), r"like is \(2,\); it must have 2 axes"),
    ],
)
def test_grids_that_cannot_be_are_refused(sizes, like, message):
    with pytest.raises(ValueError, match=message):
        Positions.grid(*sizes, like=like)
    with pytest.raises(ValueError, match="coordinates covers 3 keys; there are 2"):
        Positions(torch.arange(2)[None], torch.arange(2)[None], coordinates=torch.zeros(1, 3, 2))


@pytest.mark.parametrize("name", GRIDS)
def test_other_axes_are_refused(name):
    with pytest.raises(PositionError, match=f"'{name}' reads 2 axes; the coordinates have 3"):
        build(name, **SIZES).prepare(Positions.grid(2, 2, 2))
    if name != "rotary_mixed":
        with pytest.raises(PositionError, match="axes is 0; it must be at least 1"):
            build(name, **SIZES, axes=0)


def test_a_cached_query_is_the_last_of_its_keys():
    whole = Positions.grid(2, 3)
    last = Positions(whole.query[:, 4:], whole.key, coordinates=whole.coordinates)
    for name in GRIDS:
        model = build(name, **SIZES)
        x = torch.randn(1, 6, 32, generator=torch.Generator().manual_seed(0))
        if model.overrides("bias"):
            actual, wanted = (model.prepare(positions) for positions in (last, whole))
            torch.testing.assert_close(actual, wanted[:, :, 4:])
        elif model.overrides("embed"):
            actual = model.embed(x[:, 4:], model.prepare(last))
            torch.testing.assert_close(actual, model.embed(x, model.prepare(whole))[:, 4:])
        else:
            heads = x.view(1, 6, 2, 16)
            actual = model.qkv(heads[:, 4:], heads[:, 4:], heads, AttentionContext(model.prepare(last), 0))[0]
            torch.testing.assert_close(
                actual, model.qkv(heads, heads, heads, AttentionContext(model.prepare(whole), 0))[0][:, 4:]
            )


@pytest.mark.parametrize("interleaved", [False, True])
def test_mrope_is_that_of_qwen(interleaved):
    module, config = (
        (modeling_qwen3_vl, Qwen3VLTextConfig) if interleaved else (modeling_qwen2_vl, Qwen2VLTextConfig)
    )
    kind = module.Qwen3VLTextRotaryEmbedding if interleaved else module.Qwen2VLRotaryEmbedding
    sections = [4, 2, 2] if interleaved else [2, 3, 3]
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": sections}
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
    other = kind(config(**sizes, rope_parameters=rope))
    positions = Positions.grid(3, 4, 5)
    cos, sin = other(torch.zeros(1), positions.coordinates.movedim(-1, 0))
    q, k = torch.randn(2, 1, 2, 60, 16).unbind()
    model = build("mrope", **SIZES, sections=sections, interleaved=interleaved, base=1e6)
    actual = model.qkv(q.transpose(1, 2), k.transpose(1, 2), k, AttentionContext(model.prepare(positions), 0))
    for ours, x in zip(actual[:2], (q, k), strict=True):
        wanted = x * cos[:, None] + module.rotate_half(x) * sin[:, None]
        torch.testing.assert_close(ours.transpose(1, 2), wanted, rtol=1e-5, atol=1e-5)


def test_mrope_on_a_text_is_rotary():
    x, positions = torch.randn(1, 9, 2, 16), Positions.arange(9)
    model, rotary = build("mrope", **SIZES), build("rotary", **SIZES, pairs="half")
    actual, wanted = (m.qkv(x, x, x, AttentionContext(m.prepare(positions), 0)) for m in (model, rotary))
    torch.testing.assert_close(actual, wanted)
    with pytest.raises(PositionError, match=r"sections is \[4, 4\]; it must be three numbers that sum to 8"):
        build("mrope", **SIZES, sections=[4, 4])


def test_interleaved_mrope_has_the_pairs_of_its_sections():
    for dim in range(2, 34, 2):
        model = build("mrope", dim=dim, heads=1, layers=1, max_length=16, interleaved=True)
        counts = [model.axis_of_pair.count(axis) for axis in range(3)]
        assert counts[1] == counts[2] == dim // 6
        assert sum(counts) == dim // 2
    sizes = {"dim": 128, "heads": 1, "layers": 1, "max_length": 16}
    model = build("mrope", **sizes, interleaved=True, sections=[24, 20, 20])  # Qwen3-VL's
    assert [model.axis_of_pair.count(axis) for axis in range(3)] == [24, 20, 20]
    for sections in ([16, 24, 24], [0, 64, 0], [42, 0, 22]):
        with pytest.raises(PositionError) as error:
            build("mrope", **sizes, interleaved=True, sections=sections)
        why = "of 64 interleaved pairs height can have at most 21 and width 21"
        assert str(error.value) == f"sections is {sections}; {why}"


def test_sinusoids_hold_the_waves_of_mae():
    wanted = build_2d_sinusoidal_position_embedding(7, 5, embed_dim=32)
    model = build("sinusoidal_grid", **SIZES)
    actual = model.embed(torch.zeros(1, 35, 32), model.prepare(Positions.grid(7, 5)))[0]
    halves = [torch.cat([part[:, ::2], part[:, 1::2]], 1) for part in actual.chunk(2, 1)]
    torch.testing.assert_close(torch.cat(halves, 1), wanted.view(35, 32).float(), rtol=0, atol=1e-5)


@torch.no_grad()
def test_tables_are_read_at_another_resolution_as_images_are():
    model = build("learned_grid", **SIZES)
    actual = model.embed(torch.zeros(1, 160, 32), model.prepare(Positions.grid(16, 10, like=(8, 5))))[0]
    image = model.embed(torch.zeros(1, 40, 32), model.prepare(Positions.grid(8, 5)))[0].view(8, 5, 32)
    wanted = F.interpolate(image.movedim(-1, 0)[None], size=(16, 10), mode="bilinear", align_corners=False)
    torch.testing.assert_close(actual.view(16, 10, 32), wanted[0].movedim(0, -1))
    for grid in ((9, 2), (2, 9)):
        with pytest.raises(PositionError, match=r"reads coordinates from 0 to 7 \(max_length 8\); got 8"):
            model.prepare(Positions.grid(*grid))


def test_alibi_falls_with_the_euclidean_distance():
    bias = build("alibi_grid", **SIZES).prepare(Positions.grid(3, 4))[0]
    for head in range(2):
        for t in range(12):
            for s in range(12):
                far = math.hypot(t // 4 - s // 4, t % 4 - s % 4)
                assert bias[head, t, s].item() == pytest.approx(-far * 2.0 ** (-4 * (head + 1)))


def test_the_gradient_of_alibi_is_finite_where_patches_coincide():
    """The root of the distance from a patch to itself made the gradients of all coordinates NaN."""
    at = torch.tensor([[[0.0, 0.0], [3.0, 4.0], [3.0, 4.0]]], dtype=torch.double, requires_grad=True)
    index = torch.arange(3)[None]
    model = build("alibi_grid", **SIZES)
    (bias,) = model.prepare(Positions(index, index, coordinates=at))
    (gradient,) = torch.autograd.grad(bias[0].sum(), at)
    away = torch.tensor([0.6, 0.8], dtype=torch.double) / 2**4  # the slope of the first of two heads
    torch.testing.assert_close(gradient[0], torch.stack([4 * away, -2 * away, -2 * away]))


@pytest.mark.parametrize("name", ["rotary_axial", "rotary_mixed"])
@torch.no_grad()
def test_rotations_depend_on_the_difference_of_coordinates(name):
    model = build(name, **SIZES)
    products = rotated(model, Positions.grid(5, 6)).view(2, 5, 6, 5, 6)
    for dy, dx in ((0, 3), (2, 0), (3, -2), (-1, 4)):
        here = products[:, max(-dy, 0), max(-dx, 0), max(dy, 0), max(dx, 0)]
        there = products[:, max(-dy, 0) + 1, max(-dx, 0) + 1, max(dy, 0) + 1, max(dx, 0) + 1]
        torch.testing.assert_close(here, there)
    assert not torch.allclose(products[:, 0, 0, 1, 2], products[:, 0, 0, 2, 1])


@torch.no_grad()
def test_axial_rotary_is_rotary_along_each_axis():
    model = build("rotary_axial", **SIZES, base=10000.0)
    rotary = build("rotary", dim=16, heads=2, layers=1, max_length=8)
    x, positions = torch.randn(1, 12, 2, 16), Positions.grid(3, 4)
    actual = model.qkv(x, x, x, AttentionContext(model.prepare(positions), 0))[0]
    for axis, part in enumerate(x.chunk(2, -1)):
        at = positions.coordinates[..., axis]
        wanted = rotary.qkv(part, part, part, AttentionContext(rotary.prepare(Positions(at, at)), 0))[0]
        torch.testing.assert_close(actual.chunk(2, -1)[axis], wanted)


@torch.no_grad()
def test_far_steps_along_the_diagonal_rotate_as_near_ones():
    model = build("liere", **SIZES)
    near, far = (model.rotations(model.prepare(Positions.arange(2, offset=at)), 0)[0] for at in (0, 2**26))
    torch.testing.assert_close(far[1] @ far[0].mT, near[1] @ near[0].mT, rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [2, 3, 6])
def test_gradients_of_rotations_are_those_of_the_exponential(size):
    """Eigenvalues are equal at the origin, all of them, and for planes that turn alike."""
    torch.manual_seed(0)
    x = torch.randn(3, size, size, dtype=torch.double)
    x[0], x[1] = 0, torch.block_diag(*[torch.tensor([[0, 1.0], [-1, 0]])] * 3)[:size, :size].triu()
    x.requires_grad_()
    torch.testing.assert_close(rotation(x - x.mT), torch.linalg.matrix_exp(x - x.mT))
    assert torch.autograd.gradcheck(lambda x: rotation(x - x.mT), x)
    assert torch.autograd.gradgradcheck(lambda x: rotation(x - x.mT), x)


@torch.no_grad()
def test_liere_rotates_by_the_exponential_of_a_sum():
    torch.manual_seed(0)
    model, axes, size = build("liere", **SIZES, axes=3, generator=8), 3, 8
    x = torch.randn(1, 12, 2, 16)
    positions = Positions.grid(2, 2, 3)
    _, k, _ = model.qkv(x, x, x, AttentionContext(model.prepare(positions), 1))
    row, column = torch.triu_indices(size, size, 1)
    for t in (0, 5, 11):
        for head in range(2):
            for part in range(2):
                skew = torch.zeros(size, size, dtype=torch.double)
                for axis in range(axes):
                    entries = model.entries[1, axis, 2 * head + part].double()
                    skew[row, column] += positions.coordinates[0, t, axis] / 8 * entries
                wanted = torch.matrix_exp(skew - skew.T) @ x[0, t, head, 8 * part : 8 * part + 8].double()
                actual = k[0, t, head, 8 * part : 8 * part + 8].double()
                torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(PositionError, match="generator is 3; it must be a divisor of head_dim 16 above 1"):
        build("liere", **SIZES, generator=3)


@torch.no_grad()
def test_a_flow_along_each_axis_is_floater_where_the_other_rests():
    model = build("floater_grid", **SIZES)
    floater = build("floater", **SIZES, injection="add")
    floater.flows[0].load_state_dict(model.flows[0].state_dict())
    for parameter in model.flows[1].parameters():
        nn.init.zeros_(parameter)
    x = torch.zeros(1, 12, 32)
    actual = model.embed(x, model.prepare(Positions.grid(3, 4)))
    rows = torch.arange(12)[None] // 4
    wanted = floater.embed(x, floater.prepare(Positions(rows, rows)))
    torch.testing.assert_close(actual, wanted, rtol=1e-5, atol=1e-6)
    assert bool(actual.any())


@torch.no_grad()
def test_flows_along_the_axes_are_solved_as_scipy_solves_them():
    """DOP853 in double precision, on the fields written out."""
    torch.manual_seed(0)
    model = build("floater_grid", **SIZES)
    positions = Positions.grid(5, 7)
    actual = model.embed(torch.zeros(1, 35, 32), model.prepare(positions))[0].double()
    wanted = torch.zeros(35, 32, dtype=torch.double)
    for axis, flow in enumerate(model.flows):
        inner, outer = (
            (x.weight.double().numpy(), x.bias.double().numpy()) for x in (flow.field.inner, flow.field.outer)
        )

        def velocity(t, p, inner=inner, outer=outer):
            hidden = np.tanh(inner[0] @ np.append(p, t) + inner[1])
            return outer[0] @ np.append(hidden, t) + outer[1]

        times = 0.1 * np.arange(7)
        start = flow.start[0, 0].double().numpy()
        solution = solve_ivp(velocity, (0.0, times[-1]), start, "DOP853", times, rtol=1e-10, atol=1e-12).y.T
        wanted += torch.from_numpy(solution)[positions.coordinates[0, :, axis].long()]
    torch.testing.assert_close(actual, wanted, rtol=0, atol=1e-6)
