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


@pytest.fixture(scope="module")
def results():
    """How every encoding ends, from one process, as the device stays registered in it."""
    run = subprocess.run(
        [sys.executable, HERE / "read_backs.py"],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=1200,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout)


@pytest.mark.parametrize("kind", ["counted", "padded"])
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
        name: [sum(kinds[kind][part].values()) for kind in kinds for part in ("forward", "backward")]
        for name, kinds in results.items()
        if name not in CELLS
    }
    assert table == measured
