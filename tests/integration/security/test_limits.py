"""Slow, huge and many: what one client can cost the daemon is bounded."""

import gzip
import json
import socket
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
import zstandard

from tests.support.daemon import DaemonProcess, link_models
from tests.support.raw_http import Answer, exchange, read_answer, request

CONFIG = """
[server]
head_timeout = 1
max_connections = 40
[api]
body_timeout = 1
max_body = "1MB"
"""
JSON = ("Content-Type", "application/json")


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Iterator[DaemonProcess]:
    home = tmp_path_factory.mktemp("strict")
    link_models(home, tiny)
    with DaemonProcess(home, config=CONFIG) as running:
        yield running
        assert running.stop() == 0


def connected(daemon: DaemonProcess) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", daemon.port), timeout=60)
    connection.settimeout(60)
    return connection


def head(daemon: DaemonProcess, *headers: tuple[str, str]) -> bytes:
    host = ("Host", f"127.0.0.1:{daemon.port}")
    return request("POST", "/v1/chat/completions", [host, JSON, *headers])


def drip(connection: socket.socket, data: bytes, limit: float = 10.0) -> Answer:
    """Send a byte at a time until the server has had enough."""
    end = time.monotonic() + limit
    connection.settimeout(0.1)
    for position in range(len(data)):
        try:
            connection.sendall(data[position : position + 1])
            answer = read_answer(connection)
        except TimeoutError:
            assert time.monotonic() < end, "the server goes on waiting"
            continue
        except BrokenPipeError:
            return Answer(None, {}, b"")
        return answer
    raise AssertionError("everything was sent")


def test_a_connection_that_says_nothing_is_closed(strict: DaemonProcess) -> None:
    with connected(strict) as connection:
        began = time.monotonic()
        assert connection.recv(100) == b""
        assert 0.5 < time.monotonic() - began < 60


def test_a_head_that_drips_is_given_up(strict: DaemonProcess) -> None:
    with connected(strict) as connection:
        answer = drip(connection, head(strict, ("X-Slow", "a" * 400)))
    assert answer.status in (408, None)
    if answer.status:
        assert answer.error["code"] == "request_too_slow"


def test_a_second_request_that_drips_on_a_kept_connection_is_given_up(
    strict: DaemonProcess,
) -> None:
    get = request("GET", "/health", [("Host", f"127.0.0.1:{strict.port}")])
    with connected(strict) as connection:
        connection.sendall(get)
        assert read_answer(connection).status == 200
        assert drip(connection, head(strict, ("X-Slow", "a" * 400))).status in (408, None)


def test_a_body_that_drips_is_given_up(strict: DaemonProcess) -> None:
    with connected(strict) as connection:
        connection.sendall(head(strict, ("Content-Length", "5000")))
        answer = drip(connection, b" " * 5000)
    assert answer.status in (408, None)


def test_a_body_that_goes_on_after_its_refusal_is_cut(strict: DaemonProcess) -> None:
    with connected(strict) as connection:
        connection.sendall(head(strict, ("Content-Length", str(10**9))))
        assert read_answer(connection).status == 413
        end = time.monotonic() + 15
        with suppress(OSError):
            while time.monotonic() < end:
                connection.sendall(b"x")
                time.sleep(0.05)
        assert time.monotonic() < end, "the server goes on reading"


def test_an_endless_head_is_refused(strict: DaemonProcess) -> None:
    with connected(strict) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        with suppress(OSError):
            for number in range(20_000):
                connection.sendall(f"X-{number}: {'a' * 100}\r\n".encode())
        with suppress(OSError):
            assert read_answer(connection).status in (400, None)
    assert strict.get("/health")


def test_a_whole_head_that_is_too_large_is_refused(strict: DaemonProcess) -> None:
    host = ("Host", f"127.0.0.1:{strict.port}")
    for headers in ([("X-A", "a" * 50_000)], [(f"X-{n}", "a") for n in range(400)]):
        raw = request("GET", "/health", [host, *headers])
        answer = exchange(("127.0.0.1", strict.port), raw)
        assert answer.status == 400
        assert answer.error["message"]


def test_more_connections_than_allowed_get_an_answer_and_the_rest_goes_on(
    strict: DaemonProcess,
) -> None:
    with ExitStack() as stack:
        many = [stack.enter_context(connected(strict)) for _ in range(60)]
        answers = [read_answer(connection) for connection in many]
    refused = [answer for answer in answers if answer.status is not None]
    assert len(refused) >= 15, "those within the limit said nothing and were closed without a word"
    for answer in refused:
        assert answer.status == 503
        assert answer.error["code"] == "too_many_connections"
        assert answer.headers["retry-after"]
    strict.until(lambda: strict.answers("/health"), "it did not recover")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
def test_a_bomb_costs_little_and_is_refused(strict: DaemonProcess, encoding: str) -> None:
    zeros = bytes(64 * 1024 * 1024)
    packers: dict[str, Callable[[bytes], bytes]] = {
        "gzip": gzip.compress,
        "deflate": zlib.compress,
        "zstd": zstandard.ZstdCompressor().compress,
    }
    pack = packers[encoding]
    headers = {"content-type": "application/json", "content-encoding": encoding}
    answer = httpx.post(
        f"{strict.url}/v1/chat/completions", content=pack(zeros), headers=headers, timeout=60
    )
    assert answer.status_code == 413


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
def test_a_compressed_request_is_answered(strict: DaemonProcess, tiny: Path, encoding: str) -> None:
    """Some clients compress without being asked to."""
    body = json.dumps(
        {"model": tiny.name, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    ).encode()
    packers: dict[str, Callable[[bytes], bytes]] = {
        "gzip": gzip.compress,
        "deflate": zlib.compress,
        "zstd": zstandard.ZstdCompressor().compress,
    }
    pack = packers[encoding]
    headers = {"content-type": "application/json", "content-encoding": encoding}
    answer = httpx.post(
        f"{strict.url}/v1/chat/completions", content=pack(body), headers=headers, timeout=60
    )
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("depth", [200, 5_000, 200_000])
@pytest.mark.parametrize("kind", ["[", '{"a":'])
def test_deep_json_is_refused(strict: DaemonProcess, kind: str, depth: int) -> None:
    closing = {"[": "]", '{"a":': "}"}[kind]
    for text in (kind * depth, kind * depth + "1" + closing * depth):
        if len(text) < 1024 * 1024:
            answer = httpx.post(
                f"{strict.url}/v1/chat/completions",
                content='{"messages": ' + text + "}",
                headers={"content-type": "application/json"},
                timeout=60,
            )
            assert answer.status_code == 400
            assert answer.json()["error"]["message"]
