"""A small HTTP server that speaks the part of the Hugging Face hub's API that a pull needs.

Files in large storage are redirected to a second path with its own host name, as the hub does
with its CDN. Ranges, ETags and the hub's error headers are like the real ones.
"""

import hashlib
import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34
LARGE = 1000
"""Bytes; larger files are in large storage."""
BLOCK = 64 * 1024


@dataclass
class Repo:
    """``gated``: only this token may read; ``lies``: for these names wrong bytes are sent."""

    files: Mapping[str, bytes]
    commit: str = COMMIT
    gated: str | None = None
    private: str | None = None
    lies: dict[str, bytes] = field(default_factory=dict)
    branches: tuple[str, ...] = ("main",)


@dataclass(frozen=True)
class Seen:
    method: str
    path: str
    range: str | None
    authorization: str | None
    host: str


class FakeHub:
    """``with FakeHub() as hub``; put repositories into ``repos``.

    Attributes:
        cut_after: the connection breaks after this many bytes of a file; counts ``cuts`` down.
        hold_after: an answer stops after this many bytes until ``go_on`` is set.
        ignore_ranges: the whole file is sent, even for a range request.
    """

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.seen: list[Seen] = []
        self.cut_after: int | None = None
        self.cuts = 0
        self.hold_after: int | None = None
        self.holding = threading.Event()
        self.go_on = threading.Event()
        self.ignore_ranges = False
        hub = self

        class Answering(_Answering):
            fake = hub

        self._server = _Server(("127.0.0.1", 0), Answering)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environ(self) -> dict[str, str]:
        return {"HF_ENDPOINT": self.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}

    def fetched(self, name: str) -> list[Seen]:
        """The requests for the bytes of one file, in order."""
        return [s for s in self.seen if s.method == "GET" and s.path.endswith(f"/{name}")]

    def __enter__(self) -> "FakeHub":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that close their connection early."""


class _Answering(BaseHTTPRequestHandler):
    fake: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.fake.seen.append(
            Seen(
                self.command,
                path,
                self.headers.get("range"),
                self.headers.get("authorization"),
                str(self.headers.get("host")),
            )
        )
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self._info(found[1], found[2])
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(found[1], found[2], found[3])
        elif found := re.fullmatch(r"/cdn/([^/]+/[^/]+)/(.+)", path):
            self._bytes(self.fake.repos[found[1]], found[2])
        else:
            self._refuse(404, "EntryNotFound")

    def _repo(self, name: str) -> Repo | None:
        repo = self.fake.repos.get(name)
        asked = (self.headers.get("authorization") or "").removeprefix("Bearer ")
        if repo is None or (repo.private is not None and asked != repo.private):
            self._refuse(404 if asked else 401, "RepoNotFound")
            return None
        return repo

    def _info(self, name: str, revision: str | None) -> None:
        repo = self._repo(name)
        if repo is None:
            return
        if revision is not None and revision not in (*repo.branches, repo.commit):
            self._refuse(404, "RevisionNotFound")
            return
        siblings = [_sibling(file, data) for file, data in repo.files.items()]
        self._send(200, json.dumps({"id": name, "sha": repo.commit, "siblings": siblings}))

    def _resolve(self, name: str, revision: str, file: str) -> None:
        repo = self._repo(name)
        if repo is None:
            return
        if repo.gated is not None:
            asked = (self.headers.get("authorization") or "").removeprefix("Bearer ")
            if asked != repo.gated:
                self._refuse(403 if asked else 401, "GatedRepo")
                return
        data = repo.files.get(file)
        if data is None or revision != repo.commit:
            self._refuse(404, "EntryNotFound")
            return
        if len(data) > LARGE:
            self.send_response(302)
            self.send_header("location", f"http://localhost:{self.fake.port}/cdn/{name}/{file}")
            self.send_header("x-repo-commit", repo.commit)
            self.send_header("x-linked-size", str(len(data)))
            self.send_header("x-linked-etag", f'"{hashlib.sha256(data).hexdigest()}"')
            self.send_header("content-length", "0")
            self.end_headers()
            return
        self._bytes(repo, file)

    def _bytes(self, repo: Repo, file: str) -> None:
        data = repo.lies.get(file, repo.files[file])
        begin = 0
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("range") or "")
        if asked and not self.fake.ignore_ranges:
            begin = int(asked[1])
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("content-range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        self.send_header("x-repo-commit", repo.commit)
        self.send_header("etag", f'"{_blob_id(repo.files[file])}"')
        self.send_header("content-length", str(len(data) - begin))
        self.end_headers()
        if self.command == "GET":
            self._body(data[begin:])

    def _body(self, data: bytes) -> None:
        fake, sent = self.fake, 0
        for start in range(0, len(data), BLOCK):
            block = data[start : start + BLOCK]
            self.wfile.write(block)
            self.wfile.flush()
            sent += len(block)
            if fake.cuts > 0 and fake.cut_after is not None and sent >= fake.cut_after:
                fake.cuts -= 1
                self.close_connection = True
                self.connection.close()
                return
            if fake.hold_after is not None and sent >= fake.hold_after:
                fake.holding.set()
                fake.go_on.wait(30)

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, json.dumps({"error": code}), {"x-error-code": code})

    def _send(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _sibling(name: str, data: bytes) -> dict[str, Any]:
    about: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": _blob_id(data)}
    if len(data) > LARGE:
        digest = hashlib.sha256(data).hexdigest()
        about["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 130}
    return about


def _blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
