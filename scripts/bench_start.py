"""The seconds from exec until the daemon accepts and answers, and the seconds of a command.

Warm byte code (the first start is left out); medians of several starts on an empty home. Run it
with nothing else running.
"""

import argparse
import http.client
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

TARGETS = {"accepts": 0.3, "answers /health": 1.5, "omlxd status": 0.4}
"""Seconds."""
LIMIT = 30.0
STEP = 0.002


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def answers(port: int, path: str = "/health") -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def waited(began: float, true: Callable[[], bool]) -> float:
    while not true():
        if time.monotonic() - began > LIMIT:
            raise SystemExit("the daemon did not start")
        time.sleep(STEP)
    return time.monotonic() - began


def start_once() -> dict[str, float]:
    """Seconds until the first accepted connection and the first answer, and of `omlxd status`."""
    port = free_port()
    with tempfile.TemporaryDirectory() as home:
        began = time.monotonic()
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "omlxd", "serve", "--home", home),
                *("--port", str(port), "--model-dir", str(Path(home) / "models")),
            ],
            stderr=subprocess.DEVNULL,
        )
        try:
            times = {"accepts": waited(began, lambda: accepts(port))}
            times["answers /health"] = waited(began, lambda: answers(port))
            waited(began, lambda: answers(port, "/ready"))
            times["omlxd status"] = command(home)
            return times
        finally:
            process.terminate()
            process.wait()


def command(home: str) -> float:
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "omlxd", "status", "--home", home],
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=7)
    parser.add_argument("--check", action="store_true", help="fail when a target is missed")
    options = parser.parse_args()
    runs = [start_once() for _ in range(options.starts + 1)][1:]
    missed = False
    for name, target in TARGETS.items():
        times = [run[name] for run in runs]
        median = statistics.median(times)
        missed |= median >= target
        print(
            f"{name:16} median {median:.3f} s, fastest {min(times):.3f} s, slowest "
            f"{max(times):.3f} s, n={len(times)}   "
            f"{'meets' if median < target else 'MISSES'} {target:g} s"
        )
    if options.check and missed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
