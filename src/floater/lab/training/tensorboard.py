"""TensorBoard logs, whose failures do not stop training."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers.integrations.integration_utils import TensorBoardCallback

FOLDER = "tensorboard"
logger = logging.getLogger(__name__)


class TolerantTensorBoard(TensorBoardCallback):
    """Write curves as `TensorBoardCallback` does, and warn once if they cannot be written any more.

    Args:
        run: directory of the run; the curves are written to its subdirectory ``tensorboard``, which is made
            as the training begins.
    """

    def __init__(self, run: Path) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.logging_dir = str(run / FOLDER)
        self._writes = True
        _silence_writer_threads()

    @classmethod
    def of(cls, run: Path) -> list[TolerantTensorBoard]:
        """Return a list of the run's callback; it is empty if TensorBoard is not installed.

        Args:
            run: directory of the run.
        """
        try:
            import torch.utils.tensorboard  # noqa: F401
        except ImportError:
            return []
        return [cls(run)]

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Write the arguments and the configuration."""
        self._write(super().on_train_begin, *args, **kwargs)

    def on_log(self, *args: Any, **kwargs: Any) -> None:
        """Write the values of a log."""
        self._write(super().on_log, *args, **kwargs)

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """Close the files."""
        self._write(super().on_train_end, *args, **kwargs)

    def _write(self, event: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        if not self._writes:
            return
        try:
            if self.tb_writer is not None:  # the directory may have been removed
                Path(self.tb_writer.log_dir).mkdir(parents=True, exist_ok=True)
            event(*args, **kwargs)
        except OSError as error:
            self._writes = False
            why = error.strerror or error
            logger.warning("the training continues without TensorBoard logs: %s", why)


def _silence_writer_threads() -> None:
    """Let threads of TensorBoard end without a traceback; the writer raises the error again."""
    before = threading.excepthook
    if getattr(before, "is_silent_for_tensorboard", False):
        return

    def hook(args: threading.ExceptHookArgs) -> None:
        if not type(args.thread).__module__.startswith("tensorboard."):
            before(args)

    hook.is_silent_for_tensorboard = True  # type: ignore[attr-defined]
    threading.excepthook = hook
