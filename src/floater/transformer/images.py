"""Vision Transformers: patches of an image in an encoder, with any position model."""

# mypy: disable-error-code="no-untyped-call,untyped-decorator"
# (the base classes of transformers are untyped)

from typing import Any

from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForImageClassification
from transformers.modeling_outputs import SequenceClassifierOutput

from floater.positions import Positions
from floater.transformer.base import FloaterPreTrainedModel, refuse
from floater.transformer.config import FloaterConfig
from floater.transformer.stacks import Encoder


@strict
class ImageConfig(FloaterConfig):
    """Configuration of a Vision Transformer: sizes and position model, and the images of training.

    Args:
        image_size: pixels along each side of a training image.
        patch_size: pixels along each side of a patch, a divisor of image_size.
        num_channels: number of channels of the images.
        image_mean: mean of each channel, for values from 0 to 1; None for 0.
        image_std: standard deviation of each channel; None for 1.

    Raises:
        ValueError: if a size is below 1, or the patches do not fill the image.

    Example:
        >>> ImageConfig.preset("tiny", image_size=32, patch_size=4).grid
        (8, 8)
    """

    model_type = "floater_image"

    vocab_size: int = 1
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    decoder_start_token_id: int | None = None
    image_size: int = 224
    patch_size: int = 16
    num_channels: int = 3
    image_mean: list[float] | None = None
    image_std: list[float] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        for name in ("image_size", "patch_size", "num_channels"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.image_size % self.patch_size:
            raise ValueError(
                f"image_size is {self.image_size}, which is not a multiple of patch_size {self.patch_size}"
            )

    @property
    def grid(self) -> tuple[int, int]:
        """Return the patches along each side of a training image."""
        return (self.image_size // self.patch_size,) * 2


class FloaterForImageClassification(FloaterPreTrainedModel):
    """A Vision Transformer (Dosovitskiy et al. 2021) that classifies the mean of its patches.

    Patches are read row by row. Encodings of grids read their coordinates, others the index of a patch.

    Args:
        config: sizes, position model, images and `num_labels`.

    Example:
        >>> import torch
        >>> config = ImageConfig.preset("tiny", image_size=8, patch_size=2, position="rotary_axial")
        >>> model = FloaterForImageClassification(config).eval()
        >>> model(torch.zeros(5, 3, 8, 12)).logits.shape
        torch.Size([5, 2])
    """

    config_class = ImageConfig
    config: ImageConfig
    main_input_name = "pixel_values"

    def __init__(self, config: ImageConfig) -> None:
        super().__init__(config)
        self.loss_type = "ForSequenceClassification"
        self.patches = nn.Linear(config.num_channels * config.patch_size**2, config.hidden_size)
        self.encoder = Encoder(config, causal=False)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.hidden_size, int(config.num_labels or 0))
        self.post_init()

    def forward(
        self, pixel_values: Tensor, labels: Tensor | None = None, scaled: bool = True, **kwargs: Any
    ) -> SequenceClassifierOutput:
        """Return logits (batch, labels), and with labels (batch,) the mean loss.

        Args:
            pixel_values: (batch, channels, height, width), of values from 0 to 1; sides are multiples of the
                patch size.
            labels: (batch,).
            scaled: whether the coordinates of patches of another resolution are those of the training grid
                (position interpolation), or count patches.
            kwargs: arguments that Hugging Face passes along; others are refused.

        Raises:
            ValueError: if the images are not of the configured channels, or patches do not fill them.
        """
        refuse(self, kwargs)
        config, size = self.config, self.config.patch_size
        if pixel_values.ndim != 4 or pixel_values.shape[1] != config.num_channels:
            raise ValueError(
                f"pixel_values are {tuple(pixel_values.shape)}; they must be "
                f"(batch, {config.num_channels}, height, width)"
            )
        height, width = (side // size for side in pixel_values.shape[2:])
        if (height * size, width * size) != tuple(pixel_values.shape[2:]) or not height * width:
            raise ValueError(
                f"images are {tuple(pixel_values.shape[2:])}; sides must be multiples of patch_size {size}"
            )
        if not pixel_values.is_floating_point():
            pixel_values = pixel_values.to(self.patches.weight.dtype)
        mean = pixel_values.new_tensor(config.image_mean or [0.0])[:, None, None]
        std = pixel_values.new_tensor(config.image_std or [1.0])[:, None, None]
        pixels = ((pixel_values - mean) / std).to(self.patches.weight.dtype)
        cut = pixels.unflatten(3, (width, size)).unflatten(2, (height, size))
        x = self.patches(cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2))
        like = config.grid if scaled and (height, width) != config.grid else None
        hidden = self.encoder(x, Positions.grid(height, width, like=like, device=x.device))
        logits = self.classifier(self.dropout(hidden.mean(1)))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=config)
        return SequenceClassifierOutput(loss=loss, logits=logits)


AutoConfig.register("floater_image", ImageConfig)
AutoModelForImageClassification.register(ImageConfig, FloaterForImageClassification)
