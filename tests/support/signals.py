"""The signal dispositions for a process that a test starts."""

import signal


def default_signals() -> None:
    """Pass it as ``preexec_fn``: the tests may run with ignored signals (``nohup``)."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
