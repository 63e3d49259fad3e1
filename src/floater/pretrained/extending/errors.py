"""Error of `extend`."""


class ExtendError(ValueError):
    """A model cannot be extended as asked, or an extended model was used in a way that it does not allow."""
