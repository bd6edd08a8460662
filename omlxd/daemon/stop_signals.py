"""Which signals ask for a stop."""

import signal
import sys


def stop_signals() -> tuple[signal.Signals, ...]:
    """SIGHUP, of a terminal that closes, neither where it is ignored, as under nohup, nor in a
    service: that has no terminal, and a clean end there would be one for good."""
    service = "--supervised" in sys.argv
    if service or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return signal.SIGTERM, signal.SIGINT
    return signal.SIGTERM, signal.SIGINT, signal.SIGHUP
