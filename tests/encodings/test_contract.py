"""Contract of every position model; its card names the parts that it does not keep, and why."""

import dataclasses
import itertools

import pytest
import torch
from contract_cases import EVERY, LENGTH, MASK, config, embeddings, stack, stir, where
from properties import PROPERTIES

from floater import PositionError, build, catalogue
from floater.encodings.measure import positions_for, respond
from floater.transformer.stacks import Decoder

ORDER_ALONE = ("none", "disan", "cope", "forgetting", "stick_breaking", "path")  # they read no positions


@EVERY
def test_gradients_reach_every_parameter_and_are_finite(name, given):
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
    assert all_learn != ("gradients" in encoder.position.card.exceptions), learn


@EVERY
@pytest.mark.parametrize("name_of_property", PROPERTIES)
def test_it_has_the_properties_of_every_encoding(name, given, name_of_property):
    PROPERTIES[name_of_property](name, given)


@pytest.mark.parametrize("name", [name for name in catalogue() if not hasattr(catalogue()[name], "needs")])
def test_rows_that_a_causal_stack_never_reads_are_those_that_the_card_names(name):
    idle = []
    for causal in (False, True):
        encoder = stack(name, {}, causal=causal)
        length = min(encoder.position.max_positions or 160, 160)  # past the last bucket of distances
        out = encoder(embeddings(1, length), where(encoder.position, torch.ones(1, length)))
        (out * torch.randn(out.shape)).sum().backward()
        grads = {key: parameter.grad for key, parameter in encoder.position.named_parameters()}
        idle.append(
            {key: float((grad == 0).double().mean()) for key, grad in grads.items() if grad is not None}
        )
    full, causal = idle
    # a quarter, as some units of a network may be idle
    assert any(causal[key] > full[key] + 0.25 for key in full) == ("rows" in encoder.position.card.exceptions)


@torch.no_grad()
def decoded(decoder, length):
    """The outputs of a decoder of a text of some tokens, after a source of five."""
    x, source = embeddings(1, 7)[:, :length], embeddings(1, 5) + 1
    at, of_source = (
        where(position, torch.ones(1, n, dtype=torch.long))
        for position, n in ((decoder.position, length), (decoder.cross_position, 5))
    )
    return decoder(x, at, source, of_source)


@EVERY
def test_a_prefix_has_the_outputs_of_a_longer_text_in_a_decoder(name, given):
    if "decoder" not in catalogue()[name].sites:
        pytest.skip("it does not act in a decoder")
    torch.manual_seed(0)
    decoder = Decoder(config(name, given, is_encoder_decoder=True, decoder_layers=2)).double().eval()
    stir(decoder.position)
    if "causal" in decoder.position.card.exceptions:
        pytest.skip("it sees later tokens")
    whole = decoded(decoder, 7)
    for length in (1, 4):
        torch.testing.assert_close(decoded(decoder, length), whole[:, :length])


@EVERY
@torch.no_grad()
def test_a_causal_stack_does_not_see_later_tokens(name, given):
    encoder, x = stack(name, given, causal=True), embeddings(2, 1, 6)
    x[1, :, :4] = x[0, :, :4]
    before, after = (encoder(y, where(name, MASK[:1, :6])) for y in x)
    same = torch.allclose(before[:, :4], after[:, :4])
    assert same == ("causal" not in encoder.position.card.exceptions)
    assert not torch.allclose(before[:, 4:], after[:, 4:])


@EVERY
@torch.no_grad()
def test_the_order_of_tokens_matters(name, given):
    encoder, x, positions = stack(name, given), embeddings(1, 7), where(name, MASK[:1])
    if name == "seqpe":  # its initial weights hardly act
        for parameter in encoder.position.parameters():
            torch.nn.init.normal_(parameter)
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    change = encoder(x, positions)[:, order] - encoder(x[:, order], positions)
    assert (float(change.abs().max()) > 1e-3) == (catalogue()[name].card.point != "none")


@EVERY
@torch.no_grad()
def test_bounded_models_end_with_an_error_and_others_go_on(name, given):
    encoder, long = stack(name, given), torch.ones(1, 4 * LENGTH, dtype=torch.long)
    bound = encoder.position.max_positions
    if bound is None or bound > long.shape[1]:
        out = encoder(embeddings(*long.shape), where(name, long))
        assert bool(out.isfinite().all())
    else:
        assert bound == LENGTH
        encoder(embeddings(1, bound), where(name, long[:, :bound]))
        with pytest.raises(PositionError, match=rf"\b{bound}\b.* was requested|max_length {bound}\b"):
            encoder(embeddings(1, bound + 1), where(name, long[:, : bound + 1]))


@EVERY
@torch.no_grad()
def test_single_precision_is_near_double(name, given):
    encoder, x = stack(name, given), embeddings(*MASK.shape)
    double = encoder(x, where(name, MASK))
    single = encoder.float()(x.float(), where(name, MASK)).double()
    torch.testing.assert_close(single[MASK.bool()], double[MASK.bool()], rtol=1e-4, atol=1e-4)


@EVERY
@torch.no_grad()
def test_the_plain_path_computes_what_the_kernel_does(name, given):
    encoder, x, where_ = stack(name, given), embeddings(*MASK.shape), where(name, MASK)
    real = where_.query.double() if "real" not in encoder.position.card.exceptions else where_.query
    timed = dataclasses.replace(where_, query=real, key=real)
    for dtype, near in ((torch.float64, 1e-6), (torch.float32, 1e-4), (torch.bfloat16, 0.2)):
        found = []
        for kernel in ("sdpa", "eager"):
            encoder.blocks[0].attention.config._attn_implementation = kernel  # all share it
            found.append(encoder.to(dtype)(x.to(dtype), timed)[MASK.bool()])
        torch.testing.assert_close(*found, rtol=0, atol=near)


@EVERY
@torch.no_grad()
def test_autocast_rounds_no_angle_at_position_1000(name, given):
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
            positions_for(model, 7),
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
def test_no_text_no_token_and_one_token_are_no_trouble(name, given):
    encoder = stack(name, given)
    structured = hasattr(catalogue()[name], "needs")  # of no trees the number of nodes is unknown
    for rows, length, training in itertools.product((2,) if structured else (0, 2), (0, 1), (True, False)):
        positions = where(name, torch.ones(rows, length, dtype=torch.long))
        out = encoder.train(training)(embeddings(rows, length), positions)
        assert out.shape == (rows, length, 16)
        assert bool(out.isfinite().all())


@EVERY
@torch.no_grad()
def test_real_positions_are_served_or_refused(name, given):
    encoder, x, whole = stack(name, given), embeddings(1, 7), where(name, MASK[:1])

    def timed(factor):
        times = factor * whole.query.double()
        return dataclasses.replace(whole, query=times, key=times, reordered=times)

    if "real" in encoder.position.card.exceptions:
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
