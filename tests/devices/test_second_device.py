"""Every encoding on a second device: equal to the CPU, and with as many read-backs as docs/gpu.md says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from floater import catalogue

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "gpu.md"
# For their recurrent cells PyTorch calls an operation that a device in Python lacks.
CELLS = {
    "pnat": "batch_sizes should always be on CPU",
    "rnn_transformer": "_thnn_fused_gru_cell",
    "rr_transformer": "_thnn_fused_gru_cell",
}


def run(script):
    """Return what a script prints: it has a process of its own, in which the device stays registered."""
    run = subprocess.run(
        [sys.executable, HERE / script],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=1200,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout)


@pytest.fixture(scope="module")
def results():
    """How every encoding ends."""
    return run("read_backs.py")


@pytest.mark.parametrize("kind", ["counted", "padded", "default"])
def test_every_encoding_is_that_of_the_cpu(results, kind):
    assert results.keys() == set(catalogue())
    errors = {name: kinds[kind]["error"] for name, kinds in results.items() if "error" in kinds[kind]}
    assert errors.keys() == CELLS.keys(), errors
    assert all(CELLS[name] in error for name, error in errors.items()), errors


def test_the_page_has_the_read_backs_of_every_encoding(results):
    lines = re.findall(
        r"^\| ([^|]*`[^|]*) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", PAGE.read_text(), re.MULTILINE
    )
    table = {
        name: list(map(int, counts)) for names, *counts in lines for name in re.findall(r"`(\w+)`", names)
    }
    measured = {
        name: [
            sum(kinds[kind][part].values())
            for kind in ("counted", "padded")
            for part in ("forward", "backward")
        ]
        for name, kinds in results.items()
        if name not in CELLS
    }
    assert table == measured


def test_the_page_has_the_encodings_that_a_graph_cannot_capture(results):
    """All others neither read nor copy anything, so the shapes of their results depend on shapes alone."""
    rows = re.findall(r"^\| (`[^|]*`) \| [^|\d]+ \|$", PAGE.read_text(), re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert listed == {
        name for name, kinds in results.items() if name not in CELLS and any(kinds["baked"].values())
    }


def test_whole_models_are_those_of_the_cpu():
    models = run("whole_models.py")
    graphs = {name: models.pop(name) for name in [*models] if name.startswith("captured ")}
    for name, (plain, padded) in graphs.items():
        bert = name == "captured plug bert"  # Transformers reads its mask once more
        assert not any(map(sum, (each.values() for each in plain))), name
        assert all(sum(each.values()) == 1 + bert for each in padded), name
    assert not {name: ends["error"] for name, ends in models.items() if "error" in ends}
    for name in ("CausalLM", "SequenceClassification", "plug gpt2"):  # the mask, and the solve
        assert sum(models[name]["forward"].values()) == 2, name
        assert sum(models[name]["backward"].values()) == 1, name
    counts = {
        name.removeprefix("extend "): [sum(ends[part].values()) for part in ("forward", "backward")]
        for name, ends in models.items()
    }
    for name in ("llama yarn", "llama log_n", "llama self_extend"):
        assert counts[name] == [0, 0], name
    for name in ("t5 flow", "bloom flow"):  # a solve for each bias of T5, for each block of BLOOM
        assert counts[name] == [2, 2], name
    assert counts["llama clex"] == [1, 1]  # the weights of the flow
