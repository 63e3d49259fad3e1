"""Error of `extend`."""


class ExtendError(ValueError):
    """A model cannot be extended as requested, or an extended model was used in an unsupported way."""
