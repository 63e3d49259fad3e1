"""Image classification: train at one resolution on a folder of images or on digits, and test at others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from floater.errors import DataError
from floater.lab.tasks import settings
from floater.lab.tasks.corpora.images import DIGITS, Image, read_images, resized
from floater.lab.tasks.examples import Collate, Encoded, outputs
from floater.lab.tasks.measurement import Measurement, accuracy
from floater.lab.tasks.prepared import Prepared, Splits
from floater.lab.tasks.registry import register
from floater.lab.tasks.settings import label_maps
from floater.lab.tasks.task import Task
from floater.lab.training.contents import Part
from floater.lab.training.run import RunPath
from floater.lab.training.settings import SmoothedTrainingSettings, check_numbers
from floater.transformer.images import FloaterForImageClassification, ImageConfig


@dataclass(frozen=True)
class Data:
    """Source and size of the images.

    Attributes:
        source: folder with the folders train and valid, each of which has a folder of images for every class;
            or "digits", scikit-learn's 1,797 digits of 8 x 8 pixels, 1,200 of them for training.
        image_size: side of the scaled images, in pixels.
        patch_size: side of a patch in pixels, a divisor of image_size.
        num_channels: number of colour channels: 1 (grey) or 3 (colours).
    """

    source: str = DIGITS
    image_size: int = 16
    patch_size: int = 2
    num_channels: int = 1

    def __post_init__(self) -> None:
        check_numbers(self, positive=("image_size", "patch_size"))
        if self.num_channels not in (1, 3):
            raise ValueError(f"num_channels is {self.num_channels}; it must be 1 or 3")
        if self.image_size % self.patch_size:
            raise ValueError(
                f"image_size is {self.image_size}, which is not a multiple of patch_size {self.patch_size}"
            )


@dataclass(frozen=True)
class Model(settings.Model):
    """The Transformer and its position model.

    Attributes:
        max_length: number of patches along a side for encodings of grids, number of patches of an image for
            others.
    """

    Config = ImageConfig
    output_embeddings = False

    preset: str = "tiny"
    position: settings.PositionName = "rotary_axial"
    max_length: int = 64


@dataclass(frozen=True, kw_only=True)
class ImageSettings(settings.RunSettings):
    """A run of image classification."""

    task: Literal["image_classification"] = "image_classification"
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    training: SmoothedTrainingSettings = field(
        default_factory=lambda: SmoothedTrainingSettings(
            learning_rate=1e-3, warmup_steps=100, max_tokens=4096, num_train_epochs=20, average_last=0
        )
    )

    def files_read(self) -> dict[str, Any]:
        if self.data.source == DIGITS:
            return {}
        return {"data.source": [Part(Path(self.data.source, part), ("*/*",)) for part in ("train", "valid")]}


@register("image_classification")
class ImageClassification(Task):
    """Classification of images by a Vision Transformer."""

    Settings = ImageSettings
    metric, example, unit, output = "accuracy", "image", "patches", "classes"
    metrics = ("accuracy",)
    validation_loss = None
    load_processor = staticmethod(ImageConfig.from_pretrained)

    def read(self, settings: ImageSettings) -> Splits:
        source, parts = settings.data.source, ("train", "valid")
        train, valid = (read_images(source, part, settings.data.num_channels) for part in parts)
        check_classes(valid, {image.label for image in train}, f"{source}/valid")
        return Splits(train, valid)

    def read_test(self, settings: ImageSettings, source: str) -> list[Image]:
        return read_images(source, "test", settings.data.num_channels)

    def toy(self, settings: ImageSettings) -> list[Image]:
        shape = settings.data.num_channels, settings.data.image_size, settings.data.image_size
        return [Image(torch.zeros(shape), "a"), Image(torch.ones(shape), "b")]

    def make_processor(self, settings: ImageSettings, train: list[Image]) -> ImageConfig:
        data = settings.data
        pixels = torch.cat([image.pixels.flatten(1) for image in train], 1)
        classes = sorted({image.label for image in train})
        config: ImageConfig = settings.model.config(
            image_size=data.image_size,
            patch_size=data.patch_size,
            num_channels=data.num_channels,
            image_mean=pixels.mean(1).tolist(),
            image_std=pixels.std(1).clamp(min=1e-3).tolist(),
            **label_maps(classes),
        )
        return config

    def encode(self, settings: Any, processor: Any, examples: Any, *, training: bool = False) -> Encoded:
        return encode(processor, examples, settings.data.image_size)

    def kind(self, settings: Any) -> Any:
        return FloaterForImageClassification

    def build(self, settings: Any, processor: ImageConfig, train: Any) -> FloaterForImageClassification:
        return FloaterForImageClassification(processor)

    def collate(self, settings: Any, processor: Any, model: Any) -> Collate:
        def batch(rows: Sequence[Any]) -> dict[str, Any]:
            pixels = torch.stack([row["pixel_values"] for row in rows])
            return {"pixel_values": pixels, "labels": torch.tensor([row["label"] for row in rows])}

        return batch

    def summary(self, prepared: Prepared) -> str:
        return (
            f"{len(prepared.train):,} training images, {len(prepared.valid):,} for validation; "
            f"{len(prepared.processor.id2label)} classes, {prepared.train.lengths[0]} patches"
        )

    def score(
        self, settings: Any, model: Any, processor: ImageConfig, examples: Encoded, scaled: bool = True
    ) -> Measurement:
        predicted = np.zeros(len(examples), dtype=int)
        collate = self.collate(settings, processor, model)
        for indices, result, _ in outputs(
            model, examples, lambda rows: collate(rows) | {"scaled": scaled}, 16384
        ):
            predicted[indices] = result.logits.argmax(-1).cpu().numpy()
        right = predicted == [row["label"] for row in examples.rows]
        percent, line = accuracy(right, "images")
        names = dict(processor.id2label or {})
        return Measurement(
            lengths=np.array(examples.lengths),
            statistics={"accuracy": np.stack([right, np.ones(len(right))], axis=1)},
            lines=[names[index] for index in predicted.tolist()],
            scores={"accuracy": percent},
            report=line,
        )

    def evaluate(
        self, run: RunPath, source: Any, size: int | None = None, coordinates: str = "scaled"
    ) -> Measurement:
        """Score the final model of a run on the images of a folder, which has a folder for each class.

        Args:
            run: directory of a finished run.
            source: folder of the images, or "digits" for the 397 test images of the built-in digits.
            size: side of the scaled images, in pixels; by default that of the training.
            coordinates: coordinates of patches at another size: "scaled" to the grid of the training, or
                "counted".

        Raises:
            DataError: if the run or the images are not valid, a class is none of the run, or the size is no
                multiple of the patch size.
            PositionError: if the position model does not support this number of patches.
        """
        if coordinates not in ("scaled", "counted"):
            raise DataError(f"coordinates is {coordinates!r}; it must be 'scaled' or 'counted'")
        model, config, settings = self.load(run)
        size = config.image_size if size is None else size
        if size < 1 or size % config.patch_size:
            raise DataError(f"--size is {size}; it must be a multiple of patch_size {config.patch_size}")
        images = self.read_test(settings, source)
        check_classes(images, config.label2id or (), source)
        examples = encode(config, images, size)
        return self.score(settings, model, config, examples, coordinates == "scaled")

    measure = evaluate

    def question(self, settings: ImageSettings, metric: str, test: Mapping[str, Any] | None) -> Any:
        return settings.data.source if test is None else None


def check_classes(images: Sequence[Image], classes: Collection[str], source: Any) -> None:
    """Refuse images of a class that a model does not have.

    Raises:
        DataError: if there is one; the message names the folder, the class and those of the model.
    """
    if unknown := {image.label for image in images} - {*classes}:
        valid = ", ".join(sorted(classes))
        raise DataError(f"{source}: class '{min(unknown)}' is none of the model's: {valid}"[:500])


def encode(config: ImageConfig, images: Sequence[Image], size: int) -> Encoded:
    """Encode images of the model's classes, scaled to a square; their lengths are in patches."""
    labels: dict[str, Any] = config.label2id or {}
    rows = [{"pixel_values": resized(image.pixels, size), "label": labels[image.label]} for image in images]
    return Encoded(rows, [(size // config.patch_size) ** 2] * len(rows), images)
