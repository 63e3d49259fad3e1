"""Image classification: digits at one resolution and others, folders, runs that were stopped."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

from floater.cli import main
from floater.encodings import PositionError
from floater.errors import DataError
from floater.settings import load
from floater.tasks import task
from floater.tasks.corpora.images import read_images
from floater.tasks.image_classification import ImageSettings
from floater.transformer.images import FloaterForImageClassification, ImageConfig
from helpers import equal_runs, train_killed, write_run_config

TASK = task("image_classification")
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1}


def settings(folder: Path, name: str = "run", **parts: Any) -> ImageSettings:
    config = {
        "task": "image_classification",
        "data": {"image_size": 8},
        "model": {"position": "sinusoidal_grid", "max_length": 4, "changes": SIZES | {"norm_first": True}},
        "training": {
            "learning_rate": 5e-3,
            "warmup_steps": 3,
            "max_tokens": 1024,
            "max_steps": 12,
            "save_steps": 4,
            "logging_steps": 1,
            "average_last": 2,
        },
    }
    return load(ImageSettings, write_run_config(folder / f"{name}.yaml", config, **parts))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    training = {"max_steps": 80, "save_steps": 80, "average_last": 0}
    return TASK.train(settings(tmp_path_factory.mktemp("images"), training=training))


def test_digits_are_learned_and_read_at_other_resolutions(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert json.loads((trained / "result.json").read_text())["accuracy"] > 30  # 10 by chance
    found = {
        (size, coordinates): TASK.evaluate(trained, "digits", size=size, coordinates=coordinates)
        for size in (8, 16)
        for coordinates in ("scaled", "counted")
    }
    assert found[8, "scaled"].lines == found[8, "counted"].lines
    assert found[16, "scaled"].lines != found[16, "counted"].lines
    assert found[16, "scaled"].lengths.tolist() == [64] * 397
    assert main(["evaluate", str(trained), "--source", "digits", "--size", "16"]) == 0
    assert capsys.readouterr().out.strip() == str(found[16, "scaled"])


def test_a_folder_of_images_is_read_as_the_digits_are(trained: Path, tmp_path: Path) -> None:
    images = read_images("digits", "test", 1)[:20]
    for index, image in enumerate(images):
        (tmp_path / image.label).mkdir(exist_ok=True)
        pixels = (image.pixels[0].numpy() * 255).round().astype(np.uint8)
        Pillow.fromarray(pixels).save(tmp_path / image.label / f"{index}.png")
    found = read_images(tmp_path, "test", 1)
    paths = sorted(tmp_path.glob("*/*"))
    for path, image in zip(paths, found, strict=True):
        assert image.label == images[int(path.stem)].label
        torch.testing.assert_close(image.pixels, images[int(path.stem)].pixels, rtol=0, atol=0.51 / 255)
    assert TASK.evaluate(trained, tmp_path).lengths.tolist() == [16] * 20
    colours = read_images(tmp_path, "test", 3)
    assert colours[0].pixels.shape == (3, 8, 8)


@pytest.mark.parametrize(
    ("source", "given", "message"),
    [
        ("nowhere", {}, "nowhere: there is no such folder"),
        ("empty", {}, "empty holds no image in a folder of a class"),
        ("broken", {}, "1.png is no image that can be read"),
        ("digits", {"size": 9}, "--size is 9; it must be a multiple of patch_size 2"),
        ("digits", {"coordinates": "true"}, "coordinates is 'true'"),
    ],
)
def test_what_cannot_be_read_is_refused(
    trained: Path, tmp_path: Path, source: str, given: dict[str, Any], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken" / "a").mkdir(parents=True)
    (tmp_path / "broken" / "a" / "1.png").write_text("no image")
    with pytest.raises(DataError, match=message):
        TASK.evaluate(trained, source if source == "digits" else tmp_path / source, **given)


def test_a_run_that_was_stopped_ends_as_one_that_was_not(tmp_path: Path) -> None:
    whole = TASK.train(settings(tmp_path, "whole"))
    assert equal_runs(whole, train_killed(TASK, settings(tmp_path, "killed")))


def test_tables_that_are_too_small_are_refused_before_the_training(tmp_path: Path) -> None:
    with pytest.raises(PositionError, match=r"'learned_grid' reads coordinates from 0 to 2 \(max_length 3\)"):
        TASK.check(settings(tmp_path, model={"position": "learned_grid", "max_length": 3}))


@torch.no_grad()
def test_patches_are_read_row_by_row() -> None:
    config = ImageConfig.preset("tiny", image_size=4, patch_size=2, num_channels=3, position="none")
    model, seen = FloaterForImageClassification(config).eval(), []
    model.patches.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    pixels = torch.randn(2, 3, 4, 6)
    model(pixels)
    for row in range(2):
        for column in range(3):
            patch = pixels[:, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
            assert torch.equal(seen[0][:, 3 * row + column], patch.flatten(1))
    for shape, message in (
        ((1, 1, 4, 4), r"they must be \(batch, 3, height, width\)"),
        ((1, 3, 4, 5), r"sides must be multiples of patch_size 2"),
    ):
        with pytest.raises(ValueError, match=message):
            model(torch.zeros(shape))
    with pytest.raises(ValueError, match="image_size is 5, no multiple of patch_size 2"):
        ImageConfig.preset("tiny", image_size=5, patch_size=2)
