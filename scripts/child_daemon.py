"""A daemon as the child of a script. It ends with the script, unless the script is killed."""

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
    """Set the handler of the signals that end a program."""
    for number in ENDING:
        signal.signal(number, handler)


def pass_over(number: int, frame: FrameType | None) -> None:
    """Like SIG_IGN. With SIG_IGN Python would complain about a signal that is already pending."""


def leave(number: int, frame: FrameType | None) -> None:
    """Turn the first signal into an exception. Further signals do not interrupt the exit."""
    heed(pass_over)
    raise KeyboardInterrupt


@contextmanager
def held_back() -> Iterator[None]:
    """Delay signals: one that comes during the block takes effect at its end."""
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
    """Run ``command`` until the end of the block. Its output is appended to ``log``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    process = None
    try:
        fresh = not log.exists() or log.stat().st_size > LARGEST_LOG
        with held_back(), log.open("wb" if fresh else "ab", buffering=0) as out:
            with suppress(OSError):  # the child reports a full disk
                out.write(f"{MARK}, {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
            # Its own session, so that Ctrl-C reaches only this process and stops the child once.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        yield process
    finally:
        if process is not None:
            try:
                stop(process)
            except KeyboardInterrupt:  # it came before ``stop`` ignored the signals
                stop(process)


def wait_for(process: subprocess.Popen[bytes]) -> int:
    """The exit code of ``process``. Does not use ``wait``: when two signals come at once, a thread
    of a library may take both, and ``wait`` would never return."""
    while process.poll() is None:
        time.sleep(0.5)
    return process.returncode


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the process, even if our output has no reader. Ctrl-C meanwhile kills the process."""
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
    """The last lines of the last child's output."""
    said = log.read_text(errors="replace").rpartition(MARK)[2].splitlines()[1:]
    return "\n".join(said[-lines:])
