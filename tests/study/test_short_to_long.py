"""The comparison of position models by length, in miniature."""

import functools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from floater.study.short_to_long import DEMO_MODELS, Row, demo, table
from floater.tasks.scores import score
from floater.tasks.text import read_lines
from floater.tasks.translation import Decoding, load_run, translate
from floater.tasks.translation.run import run_decoding

TESTS = ["< 80", "80-99", "100-119", "120-139", "140+"]


@pytest.mark.filterwarnings("ignore::floater.tasks.translation.CutTranslation")
def test_the_demo_compares_and_goes_on_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # an untrained model does not end its sentences
    monkeypatch.setattr("floater.study.short_to_long.Decoding", functools.partial(Decoding, max_ratio=0.01))
    two = {name: DEMO_MODELS[name] for name in ("sinusoidal", "learned")}
    monkeypatch.setattr("floater.study.short_to_long.DEMO_MODELS", two)
    rows = demo(tmp_path, train=60, valid=2, test=1, steps=2)
    assert [row.name for row in rows] == list(two)
    assert all(list(row.bleu) == TESTS for row in rows)
    # a table for the encoder and one for the decoder
    assert [row.parameters for row in rows] == [0, 2 * 1024 * 128]

    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert text == table(rows, TESTS)
    assert text in capsys.readouterr().out
    assert (tmp_path / "bleu_by_length.png").read_bytes().startswith(b"\x89PNG")

    model, tokenizer = load_run(tmp_path / "sinusoidal")
    source, target = (read_lines(tmp_path / "corpus" / f"test_80_100.{side}") for side in ("en", "de"))
    hypotheses = translate(model, tokenizer, source, run_decoding(tmp_path / "sinusoidal"))
    assert rows[0].bleu["80-99"] == score(hypotheses, target, language="de").bleu

    (tmp_path / "learned" / "model").rename(tmp_path / "model")  # killed before the last model was there
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "sinusoidal").rglob("*")}
    # one after the other in this process, which need not import everything anew
    monkeypatch.setattr("floater.study.short_to_long.ProcessPoolExecutor", lambda *_: ThreadPoolExecutor(1))
    again = demo(tmp_path, train=60, valid=2, test=1, steps=2)
    assert [row.bleu for row in again] == [row.bleu for row in rows]
    assert again[0] == rows[0], "a finished run keeps its minutes, too"
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "sinusoidal").rglob("*")} == written


def test_a_table_has_a_line_for_each_model() -> None:
    rows = [Row("a", 1234, 1.25, {"x": 1.0, "y": 20.0}), Row("b", 0, 0.0, {"x": 99.94, "y": 0.0})]
    assert table(rows, ["y", "x"]).splitlines()[2:] == [
        "| a | 1,234 | 1.2 | 20.0 | 1.0 |",
        "| b | 0 | 0.0 | 0.0 | 99.9 |",
    ]
