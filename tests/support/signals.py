"""The dispositions of signals that a process started by a test begins with."""

import signal


def default_signals() -> None:
    """To be passed as ``preexec_fn``: the tests may run where signals are ignored (``nohup``)."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
