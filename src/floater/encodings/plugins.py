"""Position encodings of installed packages, which name them in entry points."""

from __future__ import annotations

import warnings
from importlib.metadata import entry_points

GROUP = "floater.encodings"


def load() -> None:
    """Import the modules that installed packages name in the group "floater.encodings".

    Each module registers its encodings, as those of the library do. One that cannot be imported is skipped.

    Warns:
        UserWarning: with the entry point that fails, and why.

    Example:
        >>> load()
    """
    for found in entry_points(group=GROUP):
        try:
            found.load()
        except Exception as error:  # foreign code must not prevent the import of the library
            warnings.warn(f"entry point {found.name} of {GROUP} ({found.value}): {error}", stacklevel=2)
