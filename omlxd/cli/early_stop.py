"""Ends a start at a signal to stop with exit code 0, until the daemon listens for them itself."""

import signal

from omlxd.daemon.stop_signals import stop_signals

_asked: list[int] = []


def listen() -> None:
    """From the first moment: a death by signal looks like a failure to whoever started us."""
    for number in stop_signals():
        signal.signal(number, _leave)


def asked() -> bool:
    """Whether a stop was asked for. What ``_leave`` raises gets lost where Python cannot pass it
    on, as from a destructor."""
    return bool(_asked)


def _leave(number: int, frame: object) -> None:
    _asked.append(number)
    # A repetition must not cut the leaving short.
    for other in stop_signals():
        signal.signal(other, signal.SIG_IGN)
    raise SystemExit(0)
