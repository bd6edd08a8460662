"""How long after exec the daemon accepts a connection, and answers /health.

Warm byte code (the first start is left out); medians of several starts on an empty home.
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


def answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    try:
        connection.request("GET", "/health")
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


def start_once() -> tuple[float, float]:
    """(seconds to the first accepted connection, to the first answer)."""
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
            listening = waited(began, lambda: accepts(port))
            return listening, waited(began, lambda: answers(port))
        finally:
            process.terminate()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=7)
    starts = parser.parse_args().starts
    runs = [start_once() for _ in range(starts + 1)][1:]
    for name, times in zip(("accepts", "answers /health"), zip(*runs, strict=True), strict=True):
        print(
            f"{name:16} median {statistics.median(times):.3f} s, "
            f"fastest {min(times):.3f} s, slowest {max(times):.3f} s, n={len(times)}"
        )


if __name__ == "__main__":
    main()
