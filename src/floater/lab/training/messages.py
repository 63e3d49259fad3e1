"""The messages of the library, above the progress bars of training."""

from __future__ import annotations

import logging
import sys

from tqdm.auto import tqdm


class _AboveBars(logging.Handler):
    """Write messages to standard error, above progress bars."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stderr)


def show_messages() -> None:
    """Show the messages of the library, as the command line does; once is enough.

    The library itself logs to the logger "floater" and configures nothing.

    Example:
        >>> show_messages()
        >>> logging.getLogger("floater").getEffectiveLevel() == logging.INFO
        True
    """
    logger = logging.getLogger("floater")
    logger.setLevel(logging.INFO)
    if not any(isinstance(handler, _AboveBars) for handler in logger.handlers):
        logger.addHandler(_AboveBars())
