"""Position encodings of installed packages, which name them in entry points."""

from __future__ import annotations

import warnings
from importlib.metadata import entry_points

GROUP = "floater.encodings"


def load() -> None:
    """Import the modules that installed packages name in the group "floater.encodings".

    Each module registers its encodings, as those of the library do. One that cannot be imported is skipped.

    Warns:
        UserWarning: if a module cannot be imported; the message names the entry point and the error.

    Example:
        >>> load()
    """
    for entry_point in entry_points(group=GROUP):
        try:
            entry_point.load()
        except Exception as error:  # foreign code must not prevent the import of the library
            warnings.warn(
                f"entry point {entry_point.name} of {GROUP} ({entry_point.value}): {error}", stacklevel=2
            )
