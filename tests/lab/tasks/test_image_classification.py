"""Image classification: digits at one resolution and others, folders, runs that were stopped."""

import io
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

from floater.encodings import PositionError
from floater.errors import DataError
from floater.lab.cli import main
from floater.lab.settings import load
from floater.lab.tasks import task
from floater.lab.tasks.corpora.images import read_image, read_images
from floater.lab.tasks.image_classification import ImageSettings
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
    actual = {
        (size, coordinates): TASK.evaluate(trained, "digits", size=size, coordinates=coordinates)
        for size in (8, 16)
        for coordinates in ("scaled", "counted")
    }
    assert actual[8, "scaled"].lines == actual[8, "counted"].lines
    assert actual[16, "scaled"].lines != actual[16, "counted"].lines
    assert actual[16, "scaled"].lengths.tolist() == [64] * 397
    assert main(["evaluate", str(trained), "--source", "digits", "--size", "16"]) == 0
    assert capsys.readouterr().out.strip() == str(actual[16, "scaled"])


def test_a_folder_of_images_is_read_as_the_digits_are(trained: Path, tmp_path: Path) -> None:
    images = read_images("digits", "test", 1)[:20]
    for index, image in enumerate(images):
        (tmp_path / image.label).mkdir(exist_ok=True)
        pixels = (image.pixels[0].numpy() * 255).round().astype(np.uint8)
        Pillow.fromarray(pixels).save(tmp_path / image.label / f"{index}.png")
    actual = read_images(tmp_path, "test", 1)
    paths = sorted(tmp_path.glob("*/*"))
    for path, image in zip(paths, actual, strict=True):
        assert image.label == images[int(path.stem)].label
        torch.testing.assert_close(image.pixels, images[int(path.stem)].pixels, rtol=0, atol=0.51 / 255)
    assert TASK.evaluate(trained, tmp_path).lengths.tolist() == [16] * 20
    colours = read_images(tmp_path, "test", 3)
    assert colours[0].pixels.shape == (3, 8, 8)


def test_a_class_that_a_model_does_not_have_is_refused(trained: Path, tmp_path: Path) -> None:
    for name in ("test/3", "test/cat", "train/a", "train/b", "valid/a", "valid/cat"):
        (tmp_path / name).mkdir(parents=True)
        Pillow.new("L", (8, 8)).save(tmp_path / name / "1.png")
    with pytest.raises(
        DataError, match=r"test: class 'cat' is none of the model's: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9$"
    ):
        TASK.evaluate(trained, tmp_path / "test")
    with pytest.raises(DataError, match=r"valid: class 'cat' is none of the model's: a, b$"):
        TASK.read(settings(tmp_path, data={"source": str(tmp_path)}))


@pytest.mark.parametrize(
    ("source", "inputs", "message"),
    [
        ("nowhere", {}, "nowhere: there is no such folder"),
        ("empty", {}, "empty holds no image in a folder of a class"),
        ("broken", {}, "1.png is not a readable image"),
        ("digits", {"size": 9}, "--size is 9; it must be a multiple of patch_size 2"),
        ("digits", {"coordinates": "true"}, "coordinates is 'true'"),
    ],
)
def test_what_cannot_be_read_is_refused(
    trained: Path, tmp_path: Path, source: str, inputs: dict[str, Any], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken" / "a").mkdir(parents=True)
    (tmp_path / "broken" / "a" / "1.png").write_text("no image")
    with pytest.raises(DataError, match=message):
        TASK.evaluate(trained, source if source == "digits" else tmp_path / source, **inputs)


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
    model.patches.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
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
    with pytest.raises(ValueError, match="image_size is 5, which is not a multiple of patch_size 2"):
        ImageConfig.preset("tiny", image_size=5, patch_size=2)


@torch.no_grad()
def test_whole_numbers_are_pixels_as_real_ones_are() -> None:
    """A mean of 0.5 was rounded to 0 for them, and a deviation of 0.25 to 0, too."""
    config = ImageConfig.preset("tiny", image_size=4, patch_size=2, image_mean=[0.5], image_std=[0.25])
    model = FloaterForImageClassification(config).eval()
    pixels = torch.randint(2, (2, config.num_channels, 4, 4))
    for whole in (pixels, pixels.to(torch.uint8)):
        torch.testing.assert_close(model(whole).logits, model(pixels.float()).logits)


def test_values_are_scaled_by_their_number_of_bits(tmp_path: Path) -> None:
    ramp = np.linspace(0, 1, 256)[None].repeat(8, 0)
    sixteen = Pillow.fromarray((ramp * 65535).round().astype(np.uint16))
    eight = Pillow.fromarray((ramp * 255).round().astype(np.uint8))
    files = {
        "8.png": eight,
        "8.tif": eight,
        "16.png": sixteen,
        "16.tif": sixteen,
        "16.pgm": sixteen,
        "float.tif": Pillow.fromarray(ramp.astype(np.float32)),
        "rgb.png": eight.convert("RGB"),
        "palette.gif": eight.convert("P"),
        "opaque.png": eight.convert("RGBA"),
        "grey_opaque.png": eight.convert("LA"),
        "cmyk.tif": eight.convert("RGB").convert("CMYK"),
    }
    (tmp_path / "12.pgm").write_bytes(b"P5 256 8 4095\n" + (ramp * 4095).round().astype(">u2").tobytes())
    for name, image in files.items():
        image.save(tmp_path / name)
    for name in [*files, "12.pgm"]:
        for channels in (1, 3):
            pixels = read_image(tmp_path / name, channels)
            assert pixels.shape == (channels, 8, 256)
            expected = torch.from_numpy(ramp).float().expand(channels, -1, -1)
            torch.testing.assert_close(pixels, expected, rtol=0, atol=1.01 / 255, msg=name)
    bilevel = Pillow.fromarray(ramp > 0.5)
    bilevel.save(tmp_path / "1.png")
    assert read_image(tmp_path / "1.png", 1).mean() == 0.5


def test_twelve_bits_in_a_tiff_are_not_taken_for_sixteen(tmp_path: Path) -> None:
    values = np.array([[0, 4095]], dtype=np.uint16)
    packed = bytes([0x00, 0x0F, 0xFF])  # 0x000, 0xfff
    tags = [(256, 2), (257, 1), (258, 12), (259, 1), (262, 1), (273, 8), (277, 1), (278, 1), (279, 3)]

    def tiff(photometric: int) -> bytes:
        body = packed + b"\0"
        rows = [(tag, photometric if tag == 262 else value) for tag, value in tags]
        entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in rows)
        return (
            b"II*\0"
            + struct.pack("<I", 8 + len(body))
            + body
            + struct.pack("<H", len(rows))
            + entries
            + b"\0" * 4
        )

    (tmp_path / "12.tif").write_bytes(tiff(1))
    assert read_image(tmp_path / "12.tif", 1).flatten().tolist() == (values[0] / 4095).tolist()


@pytest.mark.parametrize(
    ("name", "image"),
    [
        ("float.tif", Pillow.fromarray(np.array([[0.0, 200.0]], dtype=np.float32))),
        ("nan.tif", Pillow.fromarray(np.array([[0.0, np.nan]], dtype=np.float32))),
        ("32.tif", Pillow.fromarray(np.array([[0, 70000]], dtype=np.int32))),
    ],
)
def test_values_without_a_scale_are_refused(tmp_path: Path, name: str, image: Any) -> None:
    image.save(tmp_path / name)
    with pytest.raises(DataError, match=rf"{name} is not a readable image: its values are"):
        read_image(tmp_path / name, 1)


def test_an_image_is_turned_as_its_exif_says(tmp_path: Path) -> None:
    image = Pillow.new("L", (6, 2))
    image.putpixel((0, 0), 255)
    exif = Pillow.Exif()
    exif[0x0112] = 6  # the row 0 of the file is the right side
    image.save(tmp_path / "a.png", exif=exif)
    pixels = read_image(tmp_path / "a.png", 1)
    assert pixels.shape == (1, 6, 2)
    assert pixels.nonzero().tolist() == [[0, 0, 1]]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_parts_are_white_whatever_colour_they_hide(tmp_path: Path, mode: str) -> None:
    image = Pillow.new("RGBA", (2, 1), (0, 0, 0, 0))
    image.putpixel((0, 0), (0, 0, 0, 255))
    image.convert(mode).save(tmp_path / "a.png")
    for channels in (1, 3):
        assert read_image(tmp_path / "a.png", channels)[:, 0].tolist() == [[0.0, 1.0]] * channels


def test_the_first_frame_of_an_animation_is_read(tmp_path: Path) -> None:
    frames = [Pillow.new("L", (2, 2), value) for value in (51, 204)]
    for name in ("a.gif", "a.tif"):
        frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:])
        assert read_image(tmp_path / name, 1).unique().item() == pytest.approx(0.2)


def damaged() -> dict[str, bytes]:
    """Return files that Pillow refuses by several types of exceptions."""
    stream = io.BytesIO()
    Pillow.effect_noise((40, 40), 50).save(stream, "png")
    png = stream.getvalue()
    return {
        "large.png": png[:16]
        + struct.pack(">II", 10**5, 10**5)
        + png[24:],  # DecompressionBombError, or its sum
        "bad.ppm": b"P6 1x 1 255 abc",
        "short.ppm": b"P6 9 9 255 abc",
        "cut.png": png[: len(png) // 2],
        "text.jpg": b"<html>",
        "empty.png": b"",
        "head.dds": b"DDS " + bytes(40),
        "head.sgi": b"\x01\xda" + b"\xff" * 600,
        "head.tif": b"II*\0" + b"\xff" * 40,
        "head.gif": b"GIF89a\x01\0\x01\0",
        "head.psd": b"8BPS" + b"\xff" * 60,
        "head.jp2": b"\x00\x00\x00\x0cjP  \r\n\x87\n" + b"\xff" * 60,
    }


@pytest.mark.parametrize("name", damaged())
def test_every_damage_is_reported_with_the_name_of_the_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(damaged()[name])
    with pytest.raises(DataError, match=rf"{name} is not a readable image: .") as caught:
        read_image(tmp_path / name, 3)
    assert "\n" not in str(caught.value)


def test_an_image_of_too_many_pixels_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Pillow.new("1", (40, 40)).save(tmp_path / "a.png")
    monkeypatch.setattr(Pillow, "MAX_IMAGE_PIXELS", 700)  # it is refused beyond twice as many
    with pytest.raises(DataError, match=r"a\.png is not a readable image: .*1600 pixels"):
        read_image(tmp_path / "a.png", 1)


def test_classes_are_folders_with_images(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = (
        "cat/1.png",
        "dog/1.png",
        ".ipynb_checkpoints/1.png",
        "__MACOSX/cat/._1.png",
        "cat/.hidden/1.png",
    )
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Pillow.new("L", (4, 4)).save(tmp_path / name)
    for name in ("cat/Thumbs.db", "cat/desktop.ini", "dog/._1.png", "cat/.DS_Store", "dog/1.png~"):
        (tmp_path / name).write_bytes(b"no image")
    (tmp_path / "labels.csv").touch()
    (tmp_path / "bird").mkdir()
    with caplog.at_level("INFO", logger="floater"):
        assert [image.label for image in read_images(tmp_path, "test", 1)] == ["cat", "dog"]
    said = caplog.text
    assert "hidden or system files are skipped, such as .ipynb_checkpoints" in said
    assert "labels.csv is skipped" in said
    assert "folders without an image are not classes: bird" in said
    (tmp_path / "cat" / "more").mkdir()
    Pillow.new("L", (4, 4)).save(tmp_path / "cat" / "more" / "1.png")
    with pytest.raises(DataError, match=r"more/1.png is in a folder of its class"):
        read_images(tmp_path, "test", 1)


def test_data_may_lie_in_a_hidden_folder(tmp_path: Path) -> None:
    (tmp_path / ".cache" / "cat").mkdir(parents=True)
    Pillow.new("L", (4, 4)).save(tmp_path / ".cache" / "cat" / "1.png")
    assert len(read_images(tmp_path / ".cache", "test", 1)) == 1


def test_folders_of_classes_and_images_may_be_links(tmp_path: Path) -> None:
    (tmp_path / "all" / "cat").mkdir(parents=True)
    (tmp_path / "some" / "dog").mkdir(parents=True)
    image = tmp_path / "all" / "cat" / "1.png"
    Pillow.new("L", (4, 4)).save(image)
    (tmp_path / "some" / "cat").symlink_to(image.parent)
    (tmp_path / "some" / "dog" / "1.png").symlink_to(image)
    assert [each.label for each in read_images(tmp_path / "some", "test", 1)] == ["cat", "dog"]
    (tmp_path / "some" / "dog" / "2.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(DataError, match=r"dog/2\.png is not a readable image: .*No such file"):
        read_images(tmp_path / "some", "test", 1)
