"""Drives an ASGI application in-process, one request at a time, step by step if needed."""

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any

from starlette.types import ASGIApp, Message

LIMIT = 5.0
HOST = "127.0.0.1:8484"


class Call:
    """One request. ``leave``: the client closes its connection."""

    def __init__(
        self,
        app: ASGIApp,
        method: str,
        path: str,
        *,
        body: bytes | Iterable[bytes] = b"",
        headers: Iterable[tuple[str, str]] = (),
        host: str | None = HOST,
        content_type: str | None = "application/json",
        server: tuple[str, int | None] = ("127.0.0.1", 8484),
    ) -> None:
        pairs = [*headers]
        if host is not None:
            pairs.append(("host", host))
        if content_type is not None:
            pairs.append(("content-type", content_type))
        path, _, query = path.partition("?")
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in pairs],
            "client": ("127.0.0.1", 50000),
            "server": server,
        }
        self._app = app
        parts = [body] if isinstance(body, bytes) else list(body)
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        for index, part in enumerate(parts):
            more = index + 1 < len(parts)
            self._incoming.put_nowait({"type": "http.request", "body": part, "more_body": more})
        self.sent: list[Message] = []
        self._news = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> "Call":
        self._task = asyncio.create_task(self._run())
        return self

    async def _run(self) -> None:
        await self._app(self._scope, self._incoming.get, self._send)

    async def _send(self, message: Message) -> None:
        async with self._news:
            self.sent.append(message)
            self._news.notify_all()

    def leave(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def until(self, seen: Callable[["Call"], bool]) -> None:
        async with asyncio.timeout(LIMIT), self._news:
            await self._news.wait_for(lambda: seen(self))

    async def until_text(self, text: str) -> None:
        await self.until(lambda call: text in call.text)

    async def end(self) -> "Call":
        """Wait until the application is done with the request."""
        if self._task is None:
            self.start()
        assert self._task is not None
        async with asyncio.timeout(LIMIT):
            await self._task
        return self

    @property
    def status(self) -> int | None:
        return next((m["status"] for m in self.sent if m["type"] == "http.response.start"), None)

    @property
    def headers(self) -> dict[str, str]:
        for message in self.sent:
            if message["type"] == "http.response.start":
                return {k.decode().lower(): v.decode() for k, v in message["headers"]}
        return {}

    @property
    def body(self) -> bytes:
        return b"".join(m.get("body", b"") for m in self.sent if m["type"] == "http.response.body")

    @property
    def complete(self) -> bool:
        return bool(self.sent) and self.sent[-1].get("more_body") is False

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        found = self.json["error"]
        assert isinstance(found, dict)
        return found

    @property
    def events(self) -> list[Any]:
        """The data of the events as JSON, ``[DONE]`` as text; without comments."""
        data = [line[6:] for line in self.text.split("\n\n") if line.startswith("data: ")]
        return [item if item == "[DONE]" else json.loads(item) for item in data]


def post(app: ASGIApp, path: str, body: Any, **options: Any) -> Call:
    return Call(app, "POST", path, body=json.dumps(body).encode(), **options)


def get(app: ASGIApp, path: str, **options: Any) -> Call:
    return Call(app, "GET", path, content_type=None, **options)
