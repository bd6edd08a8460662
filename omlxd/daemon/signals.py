"""The signals that stop the daemon. Until its loop listens for them, they end the process."""

import signal
import sys

_received: list[int] = []


def stop_signals() -> tuple[signal.Signals, ...]:
    """The signals that ask for a stop.

    SIGHUP comes from a terminal that closes. It does not count where it is ignored, as under
    nohup. It does not count in a service either, which has no terminal: a clean end there would
    be final.
    """
    service = "--supervised" in sys.argv
    if service or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return signal.SIGTERM, signal.SIGINT
    return signal.SIGTERM, signal.SIGINT, signal.SIGHUP


def exit_on_stop_signals() -> None:
    """End with code 0 at a signal to stop. Called first of all: a death by signal looks like a
    failure to whoever started us."""
    for number in stop_signals():
        signal.signal(number, _exit)


def stop_was_asked() -> bool:
    """Whether a signal came. Python ignores what ``_exit`` raises where it cannot pass it on, as
    in a destructor."""
    return bool(_received)


def _exit(number: int, frame: object) -> None:
    _received.append(number)
    ignore_stop_signals()
    raise SystemExit(0)


def ignore_stop_signals() -> None:
    """For an exit that a second signal must not cut short."""
    for number in stop_signals():
        signal.signal(number, signal.SIG_IGN)
