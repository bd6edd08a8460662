"""A daemon that a script starts as its child, and that ends with it unless it is killed."""

import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

STOP_LIMIT_S = 40  # more than the daemon's own limits for draining and stopping together
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LARGEST_LOG = 2**20
MARK = "==> quickstart starts the daemon"


def say(text: str) -> None:
    print(f"==> {text}", flush=True)


def heed(handler: Callable[[int, FrameType | None], object]) -> None:
    """What the signals that end a program do from now on."""
    for number in ENDING:
        signal.signal(number, handler)


def pass_over(number: int, frame: FrameType | None) -> None:
    """As SIG_IGN, of which Python complains where a signal is under way already."""


def leave(number: int, frame: FrameType | None) -> None:
    """Turns the first signal into an exception; no other one cuts the way out short."""
    heed(pass_over)
    raise KeyboardInterrupt


@contextmanager
def held_back() -> Iterator[None]:
    """A signal that comes meanwhile takes hold at the end of the block."""
    came: list[int] = []
    heed(lambda number, frame: came.append(number))
    try:
        yield
    finally:
        heed(leave)
    if came:
        leave(came[0], None)


@contextmanager
def child(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs ``command``, which adds to ``log`` what it says, until the way out of the block."""
    log.parent.mkdir(parents=True, exist_ok=True)
    process = None
    try:
        fresh = not log.exists() or log.stat().st_size > LARGEST_LOG
        with held_back(), log.open("wb" if fresh else "ab", buffering=0) as out:
            with suppress(OSError):  # a full disk is the child's to tell
                out.write(f"{MARK}, {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
            # A session of its own, so that Ctrl-C reaches only this process and the stop is one.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        yield process
    finally:
        if process is not None:
            try:
                stop(process)
            except KeyboardInterrupt:  # before it was deaf to signals
                stop(process)


def wait_for(process: subprocess.Popen[bytes]) -> int:
    """Its exit code. Not with ``wait``, which goes on for ever where the signals that should end it
    come two at a time: a thread of a library may then take both."""
    while process.poll() is None:
        time.sleep(0.5)
    return process.returncode


def stop(process: subprocess.Popen[bytes]) -> None:
    """Also where nobody reads any more what is said. Ctrl-C meanwhile kills the process."""
    heed(pass_over)
    if process.poll() is not None:
        return
    process.terminate()
    try:
        signal.signal(signal.SIGINT, leave)
        with suppress(OSError):
            say("stopping the daemon")
        process.wait(STOP_LIMIT_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()


def log_tail(log: Path, lines: int = 20) -> str:
    """The end of what the last child said."""
    said = log.read_text(errors="replace").rpartition(MARK)[2].splitlines()[1:]
    return "\n".join(said[-lines:])
