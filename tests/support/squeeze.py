"""A daemon whose memory limits a test lowers, and its clients."""

import itertools
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from omlxd.units import GiB, MiB
from tests.support.daemon import DaemonProcess, payloads

NO_END = {"logit_bias": {"0": -100, "1": -100, "2": -100}}
"""Fields of a request with which a tiny model's answer ends only at its limit."""
GUARD = "/v1/memory-guard"
LIMIT = 60.0


class Squeezed:
    """A daemon, its memory usage, and a ceiling that the test sets."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self.daemon = daemon
        self._names = itertools.count(1)

    # The guard

    def put(self, **body: Any) -> dict[str, Any]:
        answer = httpx.put(f"{self.daemon.url}{GUARD}", json=body, timeout=30)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def usage(self) -> int:
        """Usage in bytes, from ``/status`` after a new tick."""
        self.put()
        used: int = self.daemon.status()["current_bytes"]
        return used

    def settled_usage(self) -> int:
        """The usage when it no longer changes."""
        last = self.usage()
        for _ in range(40):
            now = self.usage()
            if abs(now - last) < MiB:
                return now
            last = now
            threading.Event().wait(0.1)
        raise AssertionError("the use of memory does not settle")

    def marks(self, soft: int, hard: int, *, hard_share: float = 0.5) -> dict[str, Any]:
        """Set the marks to these bytes; the ceiling is ``hard`` / ``hard_share``."""
        ceiling = hard / hard_share
        return self.put(
            tier="custom",
            custom_ceiling_gb=ceiling / GiB,
            soft_threshold=soft / ceiling,
            hard_threshold=hard_share,
        )

    def relax(self) -> None:
        """Return to the marks of the configuration."""
        self.put(tier=None, custom_ceiling_gb=None, soft_threshold=None, hard_threshold=None)

    def guard(self) -> dict[str, Any]:
        found: dict[str, Any] = self.daemon.get(GUARD)
        return found

    def level(self) -> str:
        level: str = self.daemon.status()["pressure_level"]
        return level

    def actions_since(self, number: int) -> list[tuple[str, str | None]]:
        """(action, model) of the guard's own decisions after the given one. Models that made room
        for a load are in the record as well, but the pool chose to unload them."""
        return [
            (action["action"], action.get("model_id"))
            for entry in self.guard()["decisions"]
            if entry["number"] > number
            for action in entry["actions"]
            if "for_model" not in action
        ]

    @property
    def last_decision(self) -> int:
        number: int = self.guard()["decisions"][-1]["number"]
        return number

    # The models

    def state(self, model: str) -> str:
        state: str = next(m for m in self.daemon.status()["models"] if m["id"] == model)["state"]
        return state

    def until(self, true: Callable[[], bool], otherwise: str) -> None:
        self.daemon.until(true, otherwise, LIMIT)

    def until_state(self, model: str, state: str) -> None:
        self.until(lambda: self.state(model) == state, f"'{model}' did not become {state}")

    def ask(self, model: str, **fields: Any) -> httpx.Response:
        body = {"model": model, "prompt": "hello", "max_tokens": 4, "temperature": 0, **fields}
        return httpx.post(f"{self.daemon.url}/v1/completions", json=body, timeout=120)

    def empty(self) -> None:
        """Unload everything."""
        for model in self.daemon.status()["models"]:
            if model["state"] != "absent":
                url = f"{self.daemon.url}/v1/models/{model['id']}/unload"
                answer = httpx.post(url, json={}, timeout=60)
                assert answer.status_code == 200, answer.text

    def phases(self) -> list[str]:
        """The phases of the requests on the device thread."""
        return sorted(request["phase"] for request in self.daemon.status()["requests"])

    def stream(self, model: str, **fields: Any) -> "Stream":
        return Stream(self.daemon.url, {"model": model, **fields})


class Stream(threading.Thread):
    """A client that reads one endless answer (or waits for all of it, with ``stream=False``)."""

    def __init__(self, url: str, fields: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self._url = f"{url}/v1/completions"
        self._body = {
            "prompt": "hello",
            "max_tokens": 50_000,
            "temperature": 0,
            "stream": True,
            **NO_END,
            **fields,
        }
        self.news: queue.Queue[dict[str, Any]] = queue.Queue()
        self.count = 0
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.error: dict[str, Any] | None = None
        """The body of an error event or of an error answer."""
        self.broken: Exception | None = None
        self.leave = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            with httpx.stream("POST", self._url, json=self._body, timeout=120) as answer:
                self.status, self.headers = answer.status_code, answer.headers
                if answer.status_code != 200:
                    answer.read()
                    self.error = answer.json()["error"]
                    return
                for chunk in payloads(answer.iter_lines()):
                    if "error" in chunk:
                        self.error = chunk["error"]
                    else:
                        self.count += 1
                        self.news.put(chunk)
                    if self.leave.is_set():
                        return
        except (httpx.HTTPError, AssertionError) as error:
            self.broken = error

    def first(self, limit: float = LIMIT) -> "Stream":
        """Wait for the first token."""
        self.news.get(timeout=limit)
        return self

    def ended(self, limit: float = LIMIT) -> "Stream":
        self.join(limit)
        assert not self.is_alive(), "the stream goes on"
        assert self.broken is None, self.broken
        return self

    def go(self) -> None:
        self.leave.set()
        self.join(LIMIT)
