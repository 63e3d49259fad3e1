"""Random times of training: their laws, who reads them, and that one draw serves all of a pass."""

import math

import pytest
import torch
from transformer_cases import build_model, config, stirred_encoder, tokens
from transformers import DynamicCache

from floater import FloaterConfig, PositionError, Positions, catalogue
from floater.encodings.measure import positions_for
from floater.flow.collocation import solver
from floater.transformer import (
    FloaterForCausalLM,
    FloaterForConditionalGeneration,
    FloaterForMaskedLM,
    FloaterModel,
)
from floater.transformer.memory import Memory
from floater.transformer.stacks import position_model
from floater.transformer.times import Times, check_times

MODES = ("stretch", "shift", "float", "subset")
LEFT = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])


def times(mode="stretch", **options):
    return {"mode": mode, "max_scale": 3.0, **options}


@pytest.mark.parametrize("mode", MODES)
def test_draws_rise_below_the_horizon_and_reach_all_of_it(mode):
    torch.manual_seed(0)
    drawn = [Times(mode, length=20, max_scale=3.0).sample(9)(torch.arange(10)) for _ in range(2000)]
    at = torch.stack(drawn).double()
    steps = at.diff()
    assert at.min() >= 0
    assert at.max() < 60
    assert bool((steps > 0).all())
    assert at[:, 0].min() < 1
    assert at[:, -1].max() > 58
    if mode in ("stretch", "shift"):
        torch.testing.assert_close(steps, steps[:, :1].expand_as(steps))
    if mode in ("shift", "subset"):
        assert drawn[0].dtype == torch.long
    if mode == "stretch":  # log e is uniform in [0, log 3]
        logs = steps[:, 0].log() / math.log(3)
        assert abs(float(logs.mean()) - 0.5) < 0.03
        assert abs(float(logs.std()) - 12**-0.5) < 0.02
    elif mode == "shift":
        assert bool((steps == 1).all())
        assert len(at[:, 0].unique()) == 51
    else:  # order statistics of uniform draws
        expected = 60 * torch.arange(1, 11) / 11
        assert float((at.mean(0) - expected).abs().max()) < 1


def test_each_text_has_an_offset_of_its_own_for_its_own_length():
    """Uniform over [0, 60 - n], independent, below the horizon; within five standard deviations."""
    torch.manual_seed(0)
    law = Times("shift", length=20, max_scale=3.0, each=True)
    drawn = torch.stack([law.offsets(torch.tensor([9, 54]))[:, 0] for _ in range(2000)]).double()
    for row, count in ((drawn[:, 0], 51), (drawn[:, 1], 6)):
        assert len(row.unique()) == count
        assert (row.min(), row.max()) == (0, count - 1)
        assert abs(row.mean() - (count - 1) / 2) < 5 * ((count**2 - 1) / 12 / 2000) ** 0.5
    assert abs(float(torch.corrcoef(drawn.T)[0, 1])) < 5 * 2000**-0.5
    real = law.offsets(torch.tensor([9.5, 54.0]), real=True)
    assert real.is_floating_point()
    with pytest.raises(PositionError, match=r"a text of 61 tokens does not fit .* 60"):
        law.offsets(torch.tensor([3, 60]))


@pytest.mark.parametrize("case", ["learned", "sinusoidal"])
@torch.no_grad()
def test_a_pass_in_training_is_one_at_the_offsets_of_each_text(case):
    """Padding, packed documents, and source and target, whose offset is one."""
    options = times("shift", each=True)
    documents = torch.tensor([[0, 0, 0, 0, 1, 1], [0, 1, 1, 2, 2, 2], [0] * 6])
    model, law, text = (
        build_model(FloaterForMaskedLM, case, times=options),
        Times.of(options, 32),
        tokens(3, 6),
    )
    for inputs, at, last in (
        ({"attention_mask": LEFT}, Positions.from_mask(LEFT), [3, 5, 2]),
        ({"document_ids": documents}, Positions.from_documents(documents), [3, 2, 5]),
        ({}, Positions.arange(6), [5, 5, 5]),
    ):
        torch.manual_seed(3)
        actual = model.train()(text, **inputs).logits
        torch.manual_seed(3)
        last = torch.tensor(last)
        shifted = at.query.minimum(last[:, None]) + law.offsets(last)
        expected = model.eval()(text, **inputs, positions=at.but(query_time=shifted, key_time=shifted)).logits
        valid = LEFT.bool() if "attention_mask" in inputs else slice(None)
        torch.testing.assert_close(actual[valid], expected[valid])
    pair = build_model(FloaterForConditionalGeneration, case, times=options).train()
    seen = []
    for stack in (pair.encoder, pair.decoder):
        before = stack.position.prepare
        stack.position.prepare = lambda at, before=before: seen.append(at.query) or before(at)
    pair(tokens(2, 9), labels=tokens(2, 5, seed=1))
    assert torch.equal(seen[0][:, :5], seen[1])
    assert len(seen[0]) == 2


def test_long_texts_are_stretched_as_far_as_they_fit():
    drawn = [Times("stretch", 20, 3.0).sample(49)(torch.arange(50)) for _ in range(200)]
    assert 55 < max(float(at[-1]) for at in drawn) < 60
    assert max(float(at[1] - at[0]) for at in drawn) <= 1.2
    begins = [Times("stretch", 20, 3.0, shift=False).sample(9)(torch.arange(10))[0] for _ in range(9)]
    assert begins == [0.0] * 9


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ({"mode": "drift"}, "times.mode is 'drift'; it must be one of 'stretch', 'shift', 'float', 'subset'"),
        ({}, "times has no mode; valid: 'stretch', 'shift'"),
        (
            {"mode": "shift", "scale": 2},
            "times has no 'scale'; valid: mode, max_scale, shift, relative, each",
        ),
        ({"mode": "shift", "max_scale": 0.5}, "max_scale is 0.5; it must be a number of at least 1"),
        ({"mode": "float", "shift": False}, "only mode 'stretch' goes without, not 'float'"),
        ({"mode": "shift", "relative": True}, "mode 'shift' changes no distance, so leave it out"),
        (
            {"mode": "stretch", "each": True},
            "times.each is True; it goes with mode 'shift', not with 'stretch'",
        ),
        ({"mode": "stretch", "relative": 2}, "times.relative is 2; it must be one of True, False"),
    ],
)
def test_wrong_options_are_refused_in_the_configuration(inputs, why):
    with pytest.raises(PositionError, match=why.replace("(", "\\(")):
        FloaterConfig(times=inputs)


def test_what_cannot_be_trained_is_refused():
    with pytest.raises(PositionError, match="'rotary' reads no times, so nothing would change"):
        FloaterModel(config("rotary", times=times()))
    with pytest.raises(PositionError, match="'learned' is defined at whole times only; valid: 'shift'"):
        FloaterModel(config("learned", times=times()))
    for name, mode, why in (
        ("sinusoidal", "stretch", "times.relative is True, but 'sinusoidal' reads no distances"),
        ("forgetting", "subset", "times.relative is True, but 'forgetting' reads no distances"),
        (
            "untied_cls",
            "subset",
            "'untied_cls' with cls='first' finds .CLS. by its position",
        ),
        ("tupe_r", "float", "'tupe_r' with cls='first' finds .CLS. by its position"),
        ("shaw", "stretch", "mode is 'stretch', but 'shaw' is defined at whole times only; valid: 'subset'"),
    ):
        with pytest.raises(PositionError, match=why):
            FloaterModel(config(name, times=times(mode, relative=True)))
    model = build_model(FloaterForCausalLM, "sinusoidal", times=times("float")).train()
    with pytest.raises(PositionError, match=r"a text of 97 tokens does not fit .* 96 .*raise one of these"):
        model(tokens(1, 97))
    with pytest.raises(PositionError, match="real positions go with 'stretch' or 'shift'"):
        model(tokens(1, 3), positions=Positions.times(torch.tensor([[0.0, 0.5, 2.0]])))
    with pytest.raises(ValueError, match="give no cache, or call eval"):
        model(tokens(1, 3), past_key_values=DynamicCache())
    seq = build_model(FloaterForConditionalGeneration, "sinusoidal", times=times()).train()
    with pytest.raises(ValueError, match="source and target share random times"):
        seq(encoder_outputs=seq.encode(tokens(1, 3)), decoder_input_ids=tokens(1, 3))


RELATIVE = ("alibi", "rotary", "fire", "t5", "floater_relative", "compose", "transformer_xl")


@pytest.mark.parametrize("name", RELATIVE)
@pytest.mark.parametrize("mode", ["stretch", "float", "subset"])
@torch.no_grad()
def test_relative_encodings_read_distances_of_times_where_asked(name, mode):
    """A pass in training is the pass at the drawn times."""
    model = build_model(FloaterForCausalLM, name, times=times(mode, relative=True)).double().train()
    plain = build_model(FloaterForCausalLM, name, training_length=32 if mode == "stretch" else 96).double()
    plain.load_state_dict(model.state_dict())
    text = tokens(2, 7)
    torch.manual_seed(5)
    actual = model(text).logits
    torch.manual_seed(5)
    at = model.model.encoder.times.sample(6)(torch.arange(7))[None]
    torch.testing.assert_close(actual, plain.eval()(text, positions=Positions(at, at)).logits)
    assert bool(((model(text).logits - actual).abs() > 1e-6).any())


@pytest.mark.parametrize("name", ["alibi", "rotary", "fire", "transformer_xl"])
@pytest.mark.parametrize("mode", ["stretch", "float", "subset"])
@torch.no_grad()
def test_relative_encodings_read_texts_at_distances_of_training(name, mode):
    """True ones after "stretch", where tokens may be one apart in training; else those of even times."""
    model = build_model(FloaterForCausalLM, name, times=times(mode, relative=True)).double().eval()
    plain = build_model(FloaterForCausalLM, name, training_length=32 if mode == "stretch" else 96)
    plain = plain.double().eval()
    plain.load_state_dict(model.state_dict())
    for count, spacing in ((7, 96 / 32), (48, 96 / 48)):
        if mode == "stretch":
            spacing = 1.0
        text, at = tokens(2, count), (torch.arange(count) * spacing)[None].double()
        at = at.long() if mode == "subset" else at
        expected = plain(text, positions=Positions(at, at)).logits
        torch.testing.assert_close(model(text, use_cache=False).logits, expected)
        if count < 32:  # no length is declared
            generated = model.generate(text, max_new_tokens=3, do_sample=False, pad_token_id=0)
            longer = model(generated[:, :-1], use_cache=False).logits[:, count - 1 :].argmax(-1)
            assert torch.equal(generated[:, count:], longer)


@torch.no_grad()
def test_true_distances_have_no_horizon():
    """A relative encoding trained with "stretch" generates past it, without a declared length."""
    model = build_model(FloaterForCausalLM, "alibi", times=times("stretch", relative=True)).eval()
    text = tokens(1, 94)  # times reach 96
    generated = model.generate(text, max_new_tokens=5, do_sample=False, pad_token_id=0)
    expected = model(generated[:, :-1], use_cache=False).logits[:, 93:].argmax(-1)
    assert torch.equal(generated[:, 94:], expected)


@torch.no_grad()
def test_defaults_of_relative_encodings_count_times():
    """A window of a few tokens, and no clip below the spacing: else all distances but one would be alike."""
    options = times("subset", relative=True)  # times reach 96, and are 3 apart
    for name in ("window", "floater_relative"):
        model = build_model(FloaterForCausalLM, name, times=options).eval()
        assert model.model.encoder.position.spec.max_length == 96
        text = tokens(1, 16)
        changed = torch.cat([tokens(1, 13, seed=1), text[:, 13:]], 1)
        assert bool((model(text).logits[0, -1] != model(changed).logits[0, -1]).any())
    assert (
        build_model(FloaterForCausalLM, "dufter_relative", times=options)
        .train()(tokens(1, 9))
        .logits.isfinite()
        .all()
    )


@torch.no_grad()
def test_a_clock_at_times_of_each_text():
    """Sources of different lengths have different times; batching does not change their logits."""
    options = times("subset", relative=True)
    model = build_model(FloaterForConditionalGeneration, "rotary, clock", times=options).eval()
    source, target = tokens(2, 40), tokens(2, 4, seed=1)
    mask = torch.ones_like(source)
    mask[1, 34:] = 0
    both = model(source, attention_mask=mask, labels=target).logits
    for row, length in ((0, 40), (1, 34)):
        alone = model(source[row : row + 1, :length], labels=target[row : row + 1]).logits
        torch.testing.assert_close(both[row : row + 1], alone)


def test_a_clock_without_positions_has_no_relative_times():
    repo = {"clock": {"rate": "signed", "sum": False, "positions": False}}
    with pytest.raises(PositionError, match="reads no distances, so nothing would change"):
        FloaterModel(config("rotary", position_options=repo, times=times("subset", relative=True)))


@pytest.mark.parametrize("name", [name for name in catalogue() if catalogue()[name].autoregressive])
@torch.no_grad()
def test_relative_times_change_an_encoding_or_are_refused(name):
    """Not silently without effect."""
    encoder = stirred_encoder(name)
    x, at = torch.randn(1, 6, 16, dtype=torch.double), positions_for(encoder.position, 6)
    spread = torch.tensor([[1, 2, 5, 6, 9, 14]])
    try:
        check_times(Times("subset", length=8, max_scale=2.0, relative=True), encoder.position, name)
    except PositionError:
        return
    moved = encoder(x, at.but(query=spread, key=spread, query_time=spread, key_time=spread))
    assert bool((encoder(x, at) != moved).any())


@torch.no_grad()
def test_source_and_target_share_stretched_distances(monkeypatch):
    model = build_model(FloaterForConditionalGeneration, "alibi", times=times(relative=True)).train()
    seen = []
    for part in (model.encoder.position, model.decoder.position):
        before = part.prepare
        monkeypatch.setattr(part, "prepare", lambda at, before=before: seen.append(at.query) or before(at))
    model(tokens(1, 5), decoder_input_ids=tokens(1, 5))
    torch.testing.assert_close(seen[0], seen[1])
    assert float(seen[0][0, 1] - seen[0][0, 0]) != 1.0


@pytest.mark.parametrize("name", [name for name in catalogue() if catalogue()[name].autoregressive])
@torch.no_grad()
def test_times_change_what_reads_them_and_nothing_else(name):
    encoder = stirred_encoder(name)
    x, at = torch.randn(1, 6, 16, dtype=torch.double), positions_for(encoder.position, 6)
    plain = encoder(x, at)
    timed = encoder(x, at.but(query_time=at.query * 3 + 1, key_time=at.key * 3 + 1))
    assert bool((plain != timed).any()) == encoder.position.reads_times


def test_tables_hold_the_horizon():
    for name in ("learned", "axial", "synthesizer", "tupe_a"):
        assert position_model(config(name, times=times("subset")), 2, "self").max_positions == 96
    assert position_model(config("learned"), 2, "self").max_positions == 32


@pytest.mark.parametrize("case", ["floater", "floater, added", "sinusoidal", "shortformer"])
@pytest.mark.parametrize("mode", MODES)
@torch.no_grad()
def test_a_pass_in_training_is_one_at_the_drawn_times(case, mode):
    """Left and right padding, packed documents: the map acts on the index of a token within its text."""
    model = build_model(FloaterForMaskedLM, case, times=times(mode))
    law, ids = Times.of(times(mode), 32), tokens(3, 6)
    documents = torch.tensor([[0, 0, 0, 0, 1, 1], [0, 1, 1, 2, 2, 2], [0] * 6])
    for options, at in (
        ({"attention_mask": LEFT}, Positions.from_mask(LEFT)),
        ({"document_ids": documents}, Positions.from_documents(documents)),
        ({}, Positions.arange(6)),
    ):
        torch.manual_seed(3)
        trained = model.train()(ids, **options).logits
        torch.manual_seed(3)
        drawn = law.sample(int(at.key.max()))
        timed = at.but(query_time=drawn(at.query), key_time=drawn(at.key))
        expected = model.eval()(ids, **options, positions=timed).logits
        torch.testing.assert_close(trained, expected, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(trained, model(ids, **options).logits, atol=1e-3)


@pytest.mark.parametrize("mode", ["stretch", "shift"])
@torch.no_grad()
def test_real_positions_are_stretched_and_shifted(mode):
    model, law = build_model(FloaterModel, "sinusoidal", times=times(mode)), Times.of(times(mode), 32)
    at = torch.tensor([[0.0, 0.5, 3.25], [0.0, 7.0, 7.5]], dtype=torch.double)
    torch.manual_seed(3)
    trained = model.train()(tokens(2, 3), positions=Positions.times(at))[0]
    torch.manual_seed(3)
    expected = model.eval()(tokens(2, 3), positions=Positions.times(law.sample(7.5, real=True)(at)))[0]
    torch.testing.assert_close(trained, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_source_and_target_share_one_draw(mode, monkeypatch):
    model = build_model(FloaterForConditionalGeneration, "sinusoidal", times=times(mode)).train()
    seen = []
    for stack in (model.encoder, model.decoder):
        prepare = stack.position.prepare
        monkeypatch.setattr(
            stack.position, "prepare", lambda at, prepare=prepare: (seen.append(at.query), prepare(at))[1]
        )
    model(tokens(2, 9), labels=tokens(2, 5, seed=1))
    source, target = seen
    assert source.shape == (1, 9)
    assert torch.equal(source[:, :5], target)
    model(tokens(2, 9), labels=tokens(2, 5, seed=1))
    assert not torch.equal(seen[2], source)


@torch.no_grad()
def test_memory_stands_at_the_times_of_its_pass():
    """One draw covers memory and segment, as shortformer adds positions to what it remembers anew."""
    model = build_model(FloaterForCausalLM, "shortformer", times=times("stretch"))
    ids, law = tokens(2, 8), Times.of(times("stretch"), 32)
    memory = Memory(4)
    model.eval()(ids[:, :4], memory=memory)
    torch.manual_seed(3)
    actual = model.train()(ids[:, 4:], memory=memory).logits
    torch.manual_seed(3)
    drawn = law.sample(7)
    # positions cannot be given with a memory: the same model with sinusoids at these times
    memory = Memory(4)
    model.eval()(ids[:, :4], memory=memory)
    position = model.model.encoder.position
    prepare = type(position).prepare
    position.prepare = lambda at: prepare(position, at.but(query=drawn(at.query), key=drawn(at.key)))
    torch.testing.assert_close(model(ids[:, 4:], memory=memory).logits, actual)


def test_random_times_keep_the_plan_of_the_flow(monkeypatch):
    planned = []
    choose = solver.choose_edges
    monkeypatch.setattr(solver, "choose_edges", lambda *a: (planned.append(a[3]), choose(*a))[1])
    model = build_model(FloaterForCausalLM, "floater", times=times("stretch")).train()
    for length in (5, 9, 30, 7, 32, 11):
        model(tokens(2, length), labels=tokens(2, length)).loss.backward()
    assert len(planned) == 1
    assert planned[0] == pytest.approx(96 * 0.1)


def test_the_configuration_is_saved_with_the_model(tmp_path):
    model = build_model(FloaterForCausalLM, "learned", times=times("subset"))
    model.save_pretrained(tmp_path)
    loaded = FloaterForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.times == times("subset")
    assert torch.equal(loaded(tokens(2, 5)).logits, model(tokens(2, 5)).logits)


def test_tokens_that_share_an_id_shift_together():
    """Position coupling (Cho et al. 2024): the digits of one place share an id, and all ids shift alike."""
    torch.manual_seed(0)
    model = build_model(FloaterForCausalLM, "learned", times=times("shift")).train()
    ids = torch.tensor([[3, 2, 1, 0, 3, 2, 1, 0, 0, 1, 2, 3, 4]])
    position, seen = model.model.encoder.position, []
    prepare = position.prepare
    position.prepare = lambda at: seen.append(at.query) or prepare(at)
    for _ in range(8):
        model(tokens(1, 13), position_ids=ids)
    assert all(len((at - ids).unique()) == 1 for at in seen)
    assert len({int(at[0, 3]) for at in seen}) > 1
    model.eval()(tokens(1, 13), position_ids=ids)
    assert torch.equal(seen[-1], ids)
