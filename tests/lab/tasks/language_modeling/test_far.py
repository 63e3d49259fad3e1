"""Loss by context and against windows of the training length, against one token read at a time."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from floater.errors import DataError
from floater.lab.cli import main
from floater.lab.tasks import task
from floater.lab.tasks.language_modeling.data import begin_id, encode_documents, read_documents
from floater.lab.tasks.language_modeling.far import doubling

from .small import settings, write_texts

BLOCK, WINDOW = 24, 90
TASK = task("language_modeling")
train, evaluate, measure, load_run = TASK.train, TASK.evaluate, TASK.measure, TASK.load


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run whose documents are files, longer than any window; read only."""
    folder = tmp_path_factory.mktemp("far")
    write_texts(folder)
    return train(settings(folder, data={"documents": "file"}))


@pytest.fixture(scope="module")
def source(run: Path) -> str:
    return str(run.parent / "valid.txt")


def losses(run: Path, source: str, start: Callable[[int], int]) -> list[tuple[int, float]]:
    """Return the context and the loss of each token of the text, read alone after those from `start` on."""
    model, tokenizer, config = load_run(run, "cpu")
    (document,) = encode_documents(tokenizer, read_documents(source, config.data.documents))
    ids = torch.tensor(np.concatenate([[begin_id(tokenizer)], *document]))
    model.train(False)
    actual = []
    with torch.no_grad():
        for at in range(1, len(ids)):
            logits = model(ids[None, start(at) : at], use_cache=False).logits[0, -1]
            actual.append((at - start(at), -float(logits.log_softmax(-1)[ids[at]])))
    return actual


def slid(length: int, window: int, stride: int) -> Callable[[int], int]:
    """Return where the first window that ends after a token begins, as it slides over a text to its end."""

    def start(at: int) -> int:
        moves = max(0, -(-(at + 1 - window) // stride))
        return max(0, min(moves * stride, length - window))

    return start


def test_ranges_are_means_over_tokens_of_a_context(run: Path, source: str) -> None:
    tokens = evaluate(run, source).tokens
    far = losses(run, source, slid(tokens + 1, WINDOW, WINDOW - 1))
    near = losses(run, source, slid(tokens + 1, BLOCK, BLOCK // 2))
    actual = evaluate(run, source, window=WINDOW)
    assert [(part.low, part.high) for part in actual.ranges] == [(1, 23), (24, 47), (48, 89)]
    assert len(far) == tokens == sum(part.tokens for part in actual.ranges)
    for part in actual.ranges:
        chosen = [i for i, (context, _) in enumerate(far) if part.low <= context <= part.high]
        assert part.tokens == len(chosen)
        assert part.loss == pytest.approx(np.mean([far[i][1] for i in chosen]), rel=1e-5)
        assert part.near == pytest.approx(np.mean([near[i][1] for i in chosen]), rel=1e-5)
    assert actual.loss == pytest.approx(np.mean([loss for _, loss in far]), rel=1e-5)
    for row, part in zip(actual.bins, actual.ranges, strict=True):
        assert (row["loss"], row["loss_as_trained"]) == pytest.approx((part.loss, part.near), abs=1e-4)


def test_a_study_gets_the_ranges_as_examples(run: Path, source: str) -> None:
    edges = (10, 24, 60, 500)
    actual, wanted = (
        measure(run, source, WINDOW, bins=edges),
        evaluate(run, source, window=WINDOW, bins=edges),
    )
    assert len(wanted.ranges) == 4, "nothing stands beyond the window"
    for part in wanted.ranges:
        chosen = (actual.lengths >= part.low) & (actual.lengths <= part.high)
        assert actual.statistics["loss"][chosen, 1].sum() == part.tokens
        assert actual.score("loss", chosen) == pytest.approx(part.loss)
        assert part.near is not None
        assert actual.score("excess", chosen) == pytest.approx(part.loss - part.near)
    near = evaluate(run, source, window=BLOCK, stride=BLOCK // 2)
    assert actual.score("excess") == pytest.approx(wanted.loss - near.loss, rel=1e-5)
    assert actual.position_nats.sum() == pytest.approx(wanted.nats, rel=1e-5)
    assert actual.position_tokens.argmax() < actual.position_tokens.size == WINDOW - 1


def test_windows_of_the_training_length_have_nothing_to_be_held_against(run: Path, source: str) -> None:
    actual = evaluate(run, source, bins=(8,))
    assert [(part.low, part.near) for part in actual.ranges] == [(1, None), (8, None)]
    assert [(part["context"], set(part)) for part in actual.bins] == [
        ([1, 7], {"context", "tokens", "loss"}),
        ([8, actual.ranges[1].high], {"context", "tokens", "loss"}),
    ]
    assert evaluate(run, source).ranges == ()
    assert measure(run, source, bins=(8,)).metrics == ["loss"]


def test_a_longer_window_predicts_a_token_at_each_place_of_it(run: Path, source: str) -> None:
    """Windows share one token, but for the last, which slides back to be whole."""
    counts = measure(run, source, WINDOW).position_tokens
    tokens = int(counts.sum())
    assert counts.min() >= tokens // (WINDOW - 1)
    assert counts.max() <= tokens // (WINDOW - 1) + 1


def test_doubling_ends_below_the_window() -> None:
    assert [doubling(128, window) for window in (128, 129, 256, 257)] == [[], [128], [128], [128, 256]]


def test_the_command_line_prints_the_ranges(
    run: Path, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(run), "--source", source, "--window", str(WINDOW), "--bins", "24,50"]) == 0
    lines = capsys.readouterr().out.splitlines()[3:]
    assert lines[0].split() == ["context", "tokens", "loss", "as", "trained", "difference"]
    assert [line.split()[0] for line in lines[1:]] == ["1-23", "24-49", "50-89"]
    for line in lines[1:]:
        _, _, far, near, difference = line.split()
        assert float(difference) == pytest.approx(float(far) - float(near), abs=1.1e-4)


@pytest.mark.parametrize("edges", [(0, 50), (50, 24), (24, 24)])
def test_bounds_that_do_not_grow_are_refused(run: Path, source: str, edges: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="must be increasing whole numbers of at least 1"):
        evaluate(run, source, bins=edges)


def test_a_masked_model_has_no_context_to_count(tmp_path: Path) -> None:
    write_texts(tmp_path)
    masked = settings(tmp_path, objective="masked")
    TASK.check_test(masked, source=str(tmp_path / "valid.txt"), bins=(8,))
    run = train(masked)
    actual = measure(run, str(tmp_path / "valid.txt"), bins=(8,))
    assert actual.lengths.sum() == actual.position_tokens.sum(), "lengths are those of rows, as without bins"
    with pytest.raises(DataError, match="only a causal model without a memory is scored by context"):
        evaluate(run, str(tmp_path / "valid.txt"), bins=(8,))
