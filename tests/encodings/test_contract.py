"""What every position model keeps, unless its card says which part not, and why."""

import copy
import dataclasses
import itertools
import pickle
import re

import pytest
import torch
from transformers import DynamicCache

from floater import FloaterConfig, PositionError, Positions, build, catalogue
from floater.encodings.card import CONTRACT
from floater.encodings.measure import places, respond
from floater.structures import trees
from floater.transformer import FloaterModel
from floater.transformer.stacks import Encoder

LENGTH = 16
# options that have code of their own, and the exceptions of the card that they lift
VARIANTS = [
    ("axial", {"segment": 3}, ()),
    ("cape", {"normalize": False}, ("cache", "documents", "shift")),
    ("chang", {"window": 2, "keys": True}, ()),
    ("chen_absolute", {"segments": 2}, ()),
    ("chen_relative", {"segments": 2, "share_heads": True}, ()),
    ("complex", {"periods": "word"}, ()),
    ("complex", {"periods": "both"}, ()),
    ("complex_attention", {"periods": "both"}, ()),
    ("deberta", {"share": True, "norm": True}, ()),
    ("floater_relative", {"tail": True}, ()),
    ("floater_relative", {"normalise": True}, ()),
    ("floater_relative", {"solver": "dopri5"}, ()),
    ("floater", {"field": "bounded", "uncovered": "cut"}, ()),
    ("floater_rotary", {"basis": "learned", "pairs": "half"}, ()),
    ("rotary", {"scaling": {"rope_type": "yarn", "factor": 2.0}}, ()),
    ("rotary", {"uncovered": "cut"}, ()),
    ("sinusoidal", {"uncovered": "round"}, ()),
    ("self_extend", {"form": "leaky", "window": 2, "group": 3}, ()),
    ("self_extend", {"form": "floor", "window": 2, "group": 3}, ()),
    ("stick_breaking", {"attend_current": True}, ()),
    ("fope", {"learned": True}, ()),
    ("dape", {"model": "fire"}, ()),
    ("abacus", {"digits": [3, 6, 9, 1]}, ()),
    ("bipe", {"delimiters": [4, 9]}, ()),
    ("bipe", {"delimiters": [4, 9], "between": "alibi"}, ()),
    ("mtan", {"content": True, "width": 6}, ()),
    ("graphormer", {"hops": 2, "reach": 2, "degrees": 2}, ()),
    ("mrope", {"interleaved": True, "pairs": "interleaved"}, ()),
    ("liere", {"generator": 4}, ()),
    ("fire", {"width": 6, "threshold": 3.0}, ()),
    ("fire", {"share_layers": True}, ()),
    ("kerple", {"kind": "power"}, ()),
    ("kerple", {"share_layers": False}, ()),
    ("spe_conv", {"kernel": 4, "gated": False}, ()),
    ("structural", {"encoder": "cnn"}, ()),
    ("tree", {"branching": 4, "depth": 2, "weighted": False}, ()),
    ("xl", {"join": "learned"}, ()),
    ("xl_heads", {"reordered": 2}, ()),
]
ORDER_ALONE = ("none", "disan", "cope", "forgetting", "stick_breaking", "path")  # they read no positions
EVERY = pytest.mark.parametrize(
    ("name", "given", "lifted"),
    [pytest.param(name, {}, (), id=name) for name in catalogue()]
    + [pytest.param(*case, id=f"{case[0]}-{case[1]}") for case in VARIANTS],
)
MASK = torch.tensor(
    [[1] * 7, [0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0], [1, 0, 1, 1, 0, 0, 1], [0] * 6 + [1]]
)


def exceptions(name, lifted=()):
    return {key: why for key, why in catalogue()[name].card.exceptions.items() if key not in lifted}


def config(name, given):
    return FloaterConfig(
        vocab_size=11,
        hidden_size=16,
        intermediate_size=24,
        num_attention_heads=2,
        num_hidden_layers=2,
        training_length=LENGTH,
        dropout=0.0,
        recipe="transformer",  # the same for all, so that one threshold tells what an encoding does
        position=name,
        position_options=given,
    )


def stir(position):
    """What starts at zero, and would hide a mistake, becomes random."""
    torch.manual_seed(1)
    for parameter in position.parameters():
        if not bool(parameter.any()):
            torch.nn.init.normal_(parameter, std=0.5)


def stack(name, given, causal=False):
    torch.manual_seed(0)
    encoder = Encoder(config(name, given), causal=causal).double().eval()
    stir(encoder.position)
    return encoder


def embeddings(*shape):
    generator = torch.Generator().manual_seed(2)
    return torch.randn(*shape, 16, generator=generator, dtype=torch.double)


def where(name, mask, rows=None, queries=None):
    """Positions of a mask with all that a model may read: it follows from the row and the position alone."""
    rows = torch.arange(len(mask)) if rows is None else rows
    positions = Positions.from_mask(mask, queries=queries)
    query = positions.query.expand(len(mask), -1)
    binary = None
    if hasattr(catalogue()[name], "needs"):
        nodes = [max(int(row.sum()), 1) for row in mask]
        binary = trees(
            [[(i - 1) // 2 if i else -1 for i in range(n)] for n in nodes],
            words=[torch.where(row > 0, row.cumsum(0) - 1, -1) for row in mask],
        )
    return dataclasses.replace(
        positions,
        target_length=9 + rows,
        language=(query + rows[:, None]) % 2,
        reordered=(5 * query + rows[:, None]) % 7,
        structure=binary,
        **of_tokens(positions, query, rows),
    )


def of_tokens(positions, query, rows):
    """Ids of tokens and of segments, by their positions."""
    return {
        "token": (3 * query + rows[:, None]) % 11,
        "segment": (positions.key.expand(len(rows), -1) + rows[:, None]) % 2,
    }


@EVERY
def test_gradients_reach_every_parameter_and_are_finite(name, given, lifted):
    encoder = stack(name, given).train()
    x = embeddings(*MASK.shape).requires_grad_()
    out = encoder(x, where(name, MASK))
    (out * torch.randn(out.shape))[MASK.bool()].sum().backward()
    assert bool(x.grad.isfinite().all())
    learn = set()
    for key, parameter in encoder.position.named_parameters():
        if parameter.grad is not None:
            assert bool(parameter.grad.isfinite().all()), key
            learn |= {key} if bool(parameter.grad.any()) else set()
    all_learn = learn == {key for key, _ in encoder.position.named_parameters()}
    assert all_learn != ("gradients" in exceptions(name)), learn


@EVERY
@torch.no_grad()
def test_padding_on_any_side_changes_nothing(name, given, lifted):
    encoder, x = stack(name, given), embeddings(*MASK.shape)
    whole = encoder(x, where(name, MASK))
    for row, kept in enumerate(MASK.bool()):
        rows = torch.tensor([row])
        alone = encoder(x[row : row + 1, kept], where(name, MASK[row : row + 1, kept], rows))
        torch.testing.assert_close(whole[row, kept], alone[0])


# of each row, the lengths of its documents
PACKED = [[3, 1, 4], [2, 5], [7]]


@EVERY
@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_packed_documents_are_what_they_are_alone(name, given, lifted, causal):
    if causal and "causal" in exceptions(name, lifted):
        pytest.skip("it sees later tokens")
    encoder, rows = stack(name, given, causal=causal), torch.arange(len(PACKED))
    packed = Positions.packed(PACKED)
    x, query = embeddings(*packed.query.shape), packed.query
    positions = dataclasses.replace(
        packed,
        target_length=9 + rows,
        language=(query + rows[:, None]) % 2,
        reordered=(5 * query + rows[:, None]) % 7,
        structure=where(name, packed.key_valid).structure,
        **of_tokens(packed, query, rows),
    )
    if "documents" in exceptions(name, lifted):
        with pytest.raises(PositionError, match="packed documents"):
            encoder(x, positions)
        return
    found = encoder(x, positions)
    for row, lengths in enumerate(PACKED):
        start = 0
        for n in lengths:
            own = where(name, torch.ones(1, n, dtype=torch.long), torch.tensor([row]))
            part = slice(start, start + n)
            torch.testing.assert_close(found[row, part], encoder(x[row : row + 1, part], own)[0])
            start += n


@EVERY
@torch.no_grad()
def test_cached_decoding_of_padded_texts_is_the_whole(name, given, lifted):
    encoder, x = stack(name, given, causal=True), embeddings(*MASK.shape)
    if "cache" in exceptions(name, lifted):
        with pytest.raises(PositionError, match=r"cache"):
            encoder.position.prepare(where(name, MASK, queries=1))
        return
    whole, cache, parts = encoder(x, where(name, MASK)), DynamicCache(), []
    for start, stop in ((0, 3), (3, 4), (4, 6), (6, 7)):
        positions = where(name, MASK[:, :stop], queries=stop - start)
        parts.append(encoder(x[:, start:stop], positions, cache))
    torch.testing.assert_close(torch.cat(parts, 1)[MASK.bool()], whole[MASK.bool()])


@EVERY
@torch.no_grad()
def test_a_causal_stack_does_not_see_later_tokens(name, given, lifted):
    encoder, x = stack(name, given, causal=True), embeddings(2, 1, 6)
    x[1, :, :4] = x[0, :, :4]
    before, after = (encoder(y, where(name, MASK[:1, :6])) for y in x)
    same = torch.allclose(before[:, :4], after[:, :4])
    assert same == ("causal" not in exceptions(name, lifted))
    assert not torch.allclose(before[:, 4:], after[:, 4:])


@EVERY
@torch.no_grad()
def test_the_order_of_tokens_matters(name, given, lifted):
    encoder, x, positions = stack(name, given), embeddings(1, 7), where(name, MASK[:1])
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    change = encoder(x, positions)[:, order] - encoder(x[:, order], positions)
    assert (float(change.abs().max()) > 1e-3) == (catalogue()[name].card.point != "none")


@EVERY
@torch.no_grad()
def test_bounded_models_end_with_an_error_and_others_go_on(name, given, lifted):
    encoder, long = stack(name, given), torch.ones(1, 4 * LENGTH, dtype=torch.long)
    bound = encoder.position.max_positions
    if bound is None:
        out = encoder(embeddings(*long.shape), where(name, long))
        assert bool(out.isfinite().all())
    else:
        assert bound == LENGTH
        encoder(embeddings(1, bound), where(name, long[:, :bound]))
        with pytest.raises(PositionError, match=rf"\b{bound}\b.* was asked for|max_length {bound}\b"):
            encoder(embeddings(1, bound + 1), where(name, long[:, : bound + 1]))


@EVERY
@torch.no_grad()
def test_single_precision_is_near_double(name, given, lifted):
    encoder, x = stack(name, given), embeddings(*MASK.shape)
    double = encoder(x, where(name, MASK))
    single = encoder.float()(x.float(), where(name, MASK)).double()
    torch.testing.assert_close(single[MASK.bool()], double[MASK.bool()], rtol=1e-4, atol=1e-4)


@EVERY
@torch.no_grad()
def test_the_plain_path_computes_what_the_kernel_does(name, given, lifted):
    encoder, x, where_ = stack(name, given), embeddings(*MASK.shape), where(name, MASK)
    real = where_.query.double() if "real" not in exceptions(name) else where_.query
    timed = dataclasses.replace(where_, query=real, key=real)
    for dtype, near in ((torch.float64, 1e-6), (torch.float32, 1e-4), (torch.bfloat16, 0.2)):
        found = []
        for kernel in ("sdpa", "eager"):
            encoder.blocks[0].attention.config._attn_implementation = kernel  # all share it
            found.append(encoder.to(dtype)(x.to(dtype), timed)[MASK.bool()])
        torch.testing.assert_close(*found, rtol=0, atol=near)


@EVERY
@torch.no_grad()
def test_autocast_rounds_no_angle_at_position_1000(name, given, lifted):
    torch.manual_seed(0)
    model = build(name, dim=16, heads=2, layers=2, max_length=64, vocabulary=11, **given).eval()
    stir(model)
    at = torch.tensor([[0, 1, 5, 499, 500, 990, 1000]])  # bfloat16 has every fourth position there
    if model.max_positions is not None:
        at = at.clamp(max=model.max_positions - 1)
    if hasattr(model, "needs"):
        positions = where(name, MASK[:1])
    else:
        positions = dataclasses.replace(
            places(model, 7),
            query=at,
            key=at,
            reordered=at,
            target_length=torch.tensor([9000]),
            token=at % 11,
            segment=at % 2,
        )
    x = embeddings(1, 7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = respond(model, positions, x.float())
    double = respond(model.double(), positions, x)
    for a, b in zip((y for at in mixed for y in at), (y for at in double for y in at), strict=True):
        # products have eight significant bits; an angle would have none
        torch.testing.assert_close(a.double(), b, rtol=0, atol=0.03 * float(b[b.isfinite()].abs().max()))


@EVERY
@torch.no_grad()
def test_copies_and_saved_models_are_the_same(name, given, lifted, tmp_path):
    torch.manual_seed(0)
    model = FloaterModel(config(name, given)).eval()
    stir(model.encoder.position)
    model.save_pretrained(tmp_path)
    other = FloaterModel(config(name, given)).eval()
    assert other.load_state_dict(model.state_dict())
    x, positions = embeddings(*MASK.shape).float(), where(name, MASK)
    whole = model.encoder(x, positions)
    copies = (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        other,
        FloaterModel.from_pretrained(tmp_path),
    )
    for made in copies:
        assert made.config.position_options == made.config.position_options | given
        torch.testing.assert_close(made.eval().encoder(x, positions), whole, rtol=0, atol=0)


@EVERY
def test_reset_parameters_draws_every_parameter_anew(name, given, lifted):
    model = build(name, dim=16, heads=2, layers=2, max_length=LENGTH, vocabulary=11, **given)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    model.reset_parameters()
    for key, parameter in model.named_parameters():
        assert not bool((parameter == 7.0).any()), key


@EVERY
@torch.no_grad()
def test_no_token_and_one_token_are_no_trouble(name, given, lifted):
    encoder = stack(name, given)
    for length, training in itertools.product((0, 1), (True, False)):
        positions = where(name, torch.ones(2, length, dtype=torch.long))
        out = encoder.train(training)(embeddings(2, length), positions)
        assert out.shape == (2, length, 16)
        assert bool(out.isfinite().all())


@EVERY
@torch.no_grad()
def test_real_positions_are_served_or_refused(name, given, lifted):
    encoder, x, whole = stack(name, given), embeddings(1, 7), where(name, MASK[:1])

    def timed(factor):
        times = factor * whole.query.double()
        return dataclasses.replace(whole, query=times, key=times, reordered=times)

    if "real" in exceptions(name):
        with pytest.raises(PositionError, match=r"real (positions|times) need a model"):
            encoder(x, timed(1.0))
        return
    same = dataclasses.replace(whole, reordered=whole.query)
    # whole positions have angles of single precision
    torch.testing.assert_close(encoder(x, timed(1.0)), encoder(x, same), rtol=1e-5, atol=1e-5)
    between = encoder(x, timed(0.3))
    assert bool(between.isfinite().all())
    order_alone = name in ORDER_ALONE or hasattr(catalogue()[name], "needs")
    assert torch.allclose(between, encoder(x, same)) == order_alone


@pytest.mark.parametrize("name", catalogue())
@torch.no_grad()
def test_hooks_compile_to_one_graph(name):
    """All but `prepare`, which may look at the positions to choose a way or to refuse them."""
    encoder, x, positions = stack(name, {}), embeddings(*MASK.shape), where(name, MASK)
    position, attention = encoder.position, encoder.blocks[1].attention
    state = position.prepare(positions)

    def run(x):
        x = position.block(position.embed(x, state), state, 1)
        return attention(x, position, state, positions.key_valid, None)[0]

    torch.compiler.reset()
    compiled = torch.compile(run, fullgraph=True, backend="eager")
    if "compile" in exceptions(name):
        with pytest.raises(torch._dynamo.exc.Unsupported):
            compiled(x)
    else:
        torch.testing.assert_close(compiled(x), run(x))


def test_exceptions_are_reasons():
    for name, row in catalogue().items():
        for key, why in row.card.exceptions.items():
            assert key in CONTRACT, name
            assert re.fullmatch(r"[^.]{10,}", why), (name, key)
