"""The catalogue of position models."""

from floater.encodings.absolute.floater import Floater
from floater.encodings.absolute.learned import Learned
from floater.encodings.absolute.none import NoPosition
from floater.encodings.absolute.rnn import Recurrent
from floater.encodings.absolute.sinusoidal import Sinusoidal
from floater.encodings.model import (
    Frame,
    PositionError,
    PositionModel,
    build,
    catalogue,
    options,
    register,
)

__all__ = [
    "Floater",
    "Frame",
    "Learned",
    "NoPosition",
    "PositionError",
    "PositionModel",
    "Recurrent",
    "Sinusoidal",
    "build",
    "catalogue",
    "options",
    "register",
]
