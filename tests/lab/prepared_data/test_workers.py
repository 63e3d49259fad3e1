"""The parallel map of a preparation."""

from __future__ import annotations

import signal

from floater.lab.datasets.workers import mapped


def test_workers_leave_ctrl_c_to_the_process_that_started_them() -> None:
    """Each would print a traceback; the first process ends them."""
    assert list(mapped(signal.getsignal, [signal.SIGINT, signal.SIGTERM], 2)) == [
        signal.SIG_IGN,
        signal.SIG_DFL,
    ]
