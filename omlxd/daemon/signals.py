"""The signals that stop the daemon. Until its loop listens for them, they end the process."""

import signal
import sys

_received: list[int] = []


def stop_signals() -> tuple[signal.Signals, ...]:
    """The signals that ask for a stop.

    A closing terminal sends SIGHUP. It does not count when it is ignored, as under nohup. It does
    not count in a service either: a service has no terminal, and after a clean end the supervisor
    would not start it again.
    """
    service = "--supervised" in sys.argv
    if service or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return signal.SIGTERM, signal.SIGINT
    return signal.SIGTERM, signal.SIGINT, signal.SIGHUP


def exit_on_stop_signals() -> None:
    """End with code 0 at a stop signal. Call it first: to the parent process, a death by signal
    looks like a failure."""
    for number in stop_signals():
        signal.signal(number, _exit)


def stop_was_asked() -> bool:
    """Whether a signal came. Python drops the exception of ``_exit`` where it cannot propagate, as
    in a destructor."""
    return bool(_received)


def _exit(number: int, frame: object) -> None:
    _received.append(number)
    ignore_stop_signals()
    raise SystemExit(0)


def ignore_stop_signals() -> None:
    """Call it before an exit that a second signal must not interrupt."""
    for number in stop_signals():
        signal.signal(number, signal.SIG_IGN)
