"""Translating: an oracle for the search, batches that do not matter, limits that are said."""

import dataclasses
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from floater.encodings import PositionError
from floater.errors import DataError
from floater.lab.tasks.translation import CutTranslation, Decoding, translate
from floater.lab.training.model import set_reading
from floater.transformer import FloaterConfig, FloaterForConditionalGeneration
from floater.transformer.reading import Reading

from .conftest import Files
from .small import SIZES, load_run, pairs

GREEDY = Decoding(beam=1)


@pytest.fixture(autouse=True)
def margin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs of a few tokens, for speed and so that some of them are cut."""
    monkeypatch.setattr("floater.lab.tasks.translation.decode.MARGIN", 9)


@pytest.fixture(scope="module")
def lines(files: Files) -> list[str]:
    return pairs(files["test"]).source


@pytest.fixture(scope="module")
def model(trained: Path) -> Any:
    return load_run(trained, "cpu")


@pytest.fixture
def end_bias(model: Any) -> Iterator[torch.Tensor]:
    """A bias of the end token's logit: which texts the model ends depends on Babel's version."""
    bias = torch.zeros(())
    network, tokenizer = model

    def add(module: Any, arguments: Any, output: Any) -> None:
        output.logits[..., tokenizer.eos_token_id] += bias

    handle = network.register_forward_hook(add)
    yield bias
    handle.remove()


def small(tokenizer: Any, position: str, **changes: Any) -> FloaterForConditionalGeneration:
    torch.manual_seed(3)
    config = FloaterConfig.preset(
        "tiny", vocab_size=len(tokenizer), position=position, **(SIZES | {"training_length": 80} | changes)
    )
    return FloaterForConditionalGeneration(config)


def quiet(*arguments: Any) -> list[str]:
    with warnings.catch_warnings(action="ignore", category=CutTranslation):
        return translate(*arguments)


def search(model: Any, tokenizer: Any, line: str, decoding: Decoding) -> tuple[str, bool]:
    """Beam search of one line, each step a whole forward pass over all hypotheses, and whether it was cut."""
    source = tokenizer(line, return_tensors="pt").input_ids
    longest = int(source.shape[1] * decoding.max_ratio) + 9
    running, finished = [([1], 0.0)], []
    while running and len(finished) < decoding.beam and len(running[0][0]) - 1 < longest:
        target = torch.tensor([ids for ids, _ in running])
        logits = model(source.expand(len(target), -1), decoder_input_ids=target).logits[:, -1]
        scores = logits.float().log_softmax(-1) + torch.tensor([score for _, score in running])[:, None]
        best = scores.flatten().topk(2 * decoding.beam)
        candidates = [
            ([*running[index // len(tokenizer)][0], index % len(tokenizer)], score)
            for index, score in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
        ends = len(candidates[0][0]) - 1 == longest
        for ids, score in candidates[: decoding.beam]:
            if ends or ids[-1] == tokenizer.eos_token_id:
                finished.append((ids, score / (len(ids) - 1) ** decoding.length_penalty))
        running = [(ids, score) for ids, score in candidates if ids[-1] != tokenizer.eos_token_id][
            : decoding.beam
        ]
    ids, _ = max(finished, key=lambda hypothesis: hypothesis[1])
    return tokenizer.decode(ids, skip_special_tokens=True).strip(), ids[-1] != tokenizer.eos_token_id


@pytest.mark.parametrize("beam", [1, 3])
@torch.no_grad()
def test_translations_are_those_of_a_plain_search_line_by_line(
    model: Any, lines: list[str], beam: int, end_bias: torch.Tensor
) -> None:
    decoding = Decoding(beam=beam, length_penalty=0.6, max_ratio=0.2)
    for change in (4, 2, 1, 0.5, 0.25, 0.125):
        expected = [search(*model, line, decoding) for line in lines]
        cut = sum(was_cut for _, was_cut in expected)
        if 0 < cut < len(lines):
            break
        end_bias += change if cut else -change
    assert 0 < cut < len(lines), "the test needs translations that end and some that do not"
    with pytest.warns(
        CutTranslation, match=rf"^{cut} of {len(lines)} translations .*\(0.2 x source tokens \+ 9\)"
    ):
        actual = translate(*model, lines, decoding)
    assert actual == [text for text, _ in expected]


def test_a_translation_is_one_line(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vocabulary of bytes has both characters that end a line, and many programs end one at either."""
    ids = model[1]("one\r\ntwo\rthree\nfour", return_tensors="pt").input_ids
    monkeypatch.setattr("floater.lab.tasks.translation.decode._search", lambda *arguments: ids)
    assert translate(*model, ["a"], GREEDY) == ["one  two three four"]


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("position", ["floater", "sinusoidal", "learned", "rnn"])
def test_a_line_alone_is_translated_as_in_a_batch(
    model: Any, lines: list[str], position: str, beam: int
) -> None:
    tokenizer = model[1]
    random, decoding = small(tokenizer, position).eval(), Decoding(beam=beam, max_ratio=0.5)
    together = quiet(random, tokenizer, lines, decoding)
    assert together == [quiet(random, tokenizer, [line], decoding)[0] for line in lines]
    assert together == quiet(random, tokenizer, lines, dataclasses.replace(decoding, max_tokens=1))


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize(
    "changes",
    [
        {"times": {"mode": "float", "max_scale": 4.0}},
        {"times": {"mode": "stretch", "max_scale": 2.0}},
        {"reading": {"interpolate": True, "temperature": True}},
    ],
    ids=["float", "stretch", "interpolate"],
)
def test_a_line_is_spaced_by_its_own_longest_translation(
    model: Any, lines: list[str], changes: dict[str, Any], beam: int
) -> None:
    """Not by the lines it is batched with; the same search with the length declared finds the same."""
    tokenizer, decoding = model[1], Decoding(beam=beam, length_penalty=0.6, max_ratio=1.5)
    random = small(tokenizer, "sinusoidal", **changes | {"training_length": 8}).eval()
    together = quiet(random, tokenizer, lines, decoding)
    assert together == [quiet(random, tokenizer, [line], decoding)[0] for line in lines]
    source = tokenizer(lines[0], return_tensors="pt").input_ids
    limit = int(source.shape[1] * 1.5) + 9
    rule = dataclasses.replace(Reading.of(random.config.reading), length=limit)
    search = {"num_beams": beam, "max_new_tokens": limit}
    if beam > 1:
        search |= {"length_penalty": 0.6, "early_stopping": True}
    with torch.no_grad():
        (actual,) = random.generate(source, reading=rule, **search)
    assert tokenizer.decode(actual, skip_special_tokens=True).strip() == together[0]


def test_a_declared_length_bounds_sources_and_outputs(model: Any) -> None:
    tokenizer = model[1]
    random = small(tokenizer, "floater")
    set_reading(random, "interpolate=true,length=60")
    with pytest.raises(PositionError, match=r"line 2 has \d+ tokens, but reading.length is 60"):
        translate(random, tokenizer, ["Spain", "Spain " * 100])
    (actual,) = quiet(random, tokenizer, ["Spain " * 10], Decoding(beam=1, max_ratio=9))
    assert actual
    with pytest.raises(PositionError, match="'learned' has no bias of them"):
        set_reading(small(tokenizer, "learned"), "group=4:2")


def test_order_is_kept_and_empty_lines_stay_empty(model: Any, lines: list[str]) -> None:
    mixed = ["", lines[1], "  ", lines[0], "", lines[1]]
    first, second = quiet(*model, [lines[0]], GREEDY), quiet(*model, [lines[1]], GREEDY)
    assert quiet(*model, mixed, GREEDY) == ["", *second, "", *first, "", *second]
    assert translate(*model, ["", " "]) == ["", ""]
    assert translate(*model, []) == []


@pytest.mark.parametrize("position", ["floater", "sinusoidal"])
def test_sources_beyond_the_training_length_are_translated(model: Any, position: str) -> None:
    tokenizer = model[1]
    source = " ".join(["Spain"] * 300)
    assert len(tokenizer(source).input_ids) > 300
    random = small(tokenizer, position, training_length=80)
    assert quiet(random, tokenizer, [source], Decoding(beam=1, max_ratio=0.1))[0]


def test_learned_positions_bound_sources_and_outputs(model: Any) -> None:
    tokenizer = model[1]
    random = small(tokenizer, "learned", training_length=60)
    with pytest.raises(PositionError, match=r"line 2 has \d+ tokens, but the model has 60 learned positions"):
        translate(random, tokenizer, ["Spain", "Spain " * 100])
    with pytest.warns(CutTranslation, match=r"1 of 1 .* \(5 x source tokens \+ 9, at most 60\)"):
        assert translate(random, tokenizer, ["Spain " * 10], Decoding(beam=1, max_ratio=5))[0]


def test_a_beam_larger_than_the_vocabulary_is_refused(model: Any) -> None:
    words = len(model[1])
    quiet(*model, ["Spain"], Decoding(beam=words, max_ratio=0.1))
    with pytest.raises(DataError, match=f"beam is {words + 1}; it must be at most {words}, the size of the"):
        translate(*model, ["Spain"], Decoding(beam=words + 1))


@pytest.mark.parametrize("training", [True, False])
def test_translating_leaves_mode_and_random_numbers_alone(
    model: Any, lines: list[str], training: bool
) -> None:
    network, tokenizer = small(model[1], "floater").train(training), model[1]
    before = torch.random.get_rng_state()
    quiet(network, tokenizer, lines[:2], GREEDY)
    assert network.training == training
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("beam", [1, 4])
def test_generation_says_nothing(
    model: Any,
    lines: list[str],
    beam: int,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    try:
        with warnings.catch_warnings(action="error"):
            warnings.simplefilter("ignore", CutTranslation)
            translate(*model, lines, Decoding(beam=beam))
    finally:
        logger.removeHandler(caplog.handler)
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")
