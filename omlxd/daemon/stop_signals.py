"""Which signals ask for a stop."""

import signal


def stop_signals() -> tuple[signal.Signals, ...]:
    """SIGHUP, of a terminal that closes, only where it is not ignored, as under nohup."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return signal.SIGTERM, signal.SIGINT
    return signal.SIGTERM, signal.SIGINT, signal.SIGHUP
