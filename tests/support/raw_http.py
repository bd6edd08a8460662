"""Requests as bytes on a real socket, for requests that no client library would send."""

import json
import socket
from dataclasses import dataclass
from typing import Any

LIMIT = 20.0
MOST = 4 * 1024 * 1024


@dataclass(frozen=True)
class Answer:
    """``status``: None when the connection was closed without an answer."""

    status: int | None
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        found = json.loads(self.body)["error"]
        assert isinstance(found, dict)
        assert {"message", "type", "param", "code"} <= found.keys()
        return found


def exchange(address: tuple[str, int] | str, request: bytes, limit: float = LIMIT) -> Answer:
    """Send ``request`` whole and read until the server closes or its answer is complete."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(limit)
        connection.connect(address)
        connection.sendall(request)
        return read_answer(connection)


def read_answer(connection: socket.socket) -> Answer:
    data = b""
    while not _complete(data) and len(data) < MOST:
        try:
            part = connection.recv(65536)
        except ConnectionResetError:
            break
        if not part:
            break
        data += part
    return parse(data)


def parse(data: bytes) -> Answer:
    if not data:
        return Answer(None, {}, b"")
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return Answer(int(first.split()[1]), headers, body)


def _complete(data: bytes) -> bool:
    head, found, body = data.partition(b"\r\n\r\n")
    if not found:
        return False
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return len(body) >= int(line.split(b":")[1])
        if line.startswith(b"transfer-encoding:"):
            return body.endswith(b"0\r\n\r\n")
    return b" 204 " in head.split(b"\r\n")[0]


def request(
    method: str, target: str, headers: dict[str, str] | list[tuple[str, str]], body: bytes = b""
) -> bytes:
    """The bytes of one HTTP/1.1 request; Host only if it is among ``headers``."""
    pairs = list(headers.items()) if isinstance(headers, dict) else headers
    if body and not any(name.lower() == "content-length" for name, _ in pairs):
        pairs = [*pairs, ("Content-Length", str(len(body)))]
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in pairs)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
