"""The catalogue of position models."""

from floater.encodings.absolute import floater, learned, none, rnn, sinusoidal
from floater.encodings.model import (
    Frame,
    PositionError,
    PositionModel,
    build,
    catalogue,
    options,
    register,
)

__all__ = ["Frame", "PositionError", "PositionModel", "build", "catalogue", "options", "register"]
