"""A daemon whose models do not all fit at once, for tests and benchmarks of the pool."""

from typing import Any

import httpx

from tests.support.daemon import DaemonProcess
from tests.support.squeeze import Squeezed


class Machine(Squeezed):
    """A daemon and its models, by default a and b. It is warmed up, with no model loaded."""

    def __init__(self, daemon: DaemonProcess, models: tuple[str, ...] = ("a", "b")) -> None:
        super().__init__(daemon)
        self.models = models
        for model in models:
            answer = self.ask(model, prompt=[5] * 64)
            assert answer.status_code == 200, answer.text
        self.empty()

    def need(self, model: str) -> int:
        """Bytes that admission requires for a load: the weights and a first prompt."""
        found = self.daemon.get(f"/v1/models/{model}/fit?context=2048&concurrency=1")
        return sum(found[part] for part in ("weights_bytes", "kv_bytes", "prefill_bytes"))

    def weights(self, model: str) -> int:
        models = self.daemon.status()["models"]
        return next(int(m["weights_bytes"]) for m in models if m["id"] == model)

    def room_for_one(self) -> None:
        """Set the marks so that each model fits, but not two models."""
        used = self.settled_usage()
        need = max(self.need(model) for model in self.models)
        weights = min(self.weights(model) for model in self.models)
        self.marks(soft=used + need + weights * 4 // 10, hard=used + need + weights * 6 // 10)

    def loads(self, model: str) -> int:
        """The loads of ``model`` since the start of the daemon."""
        return sum(event["model"] == model for event in self.daemon.events("model_ready"))

    def model(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = next(m for m in self.daemon.status()["models"] if m["id"] == name)
        return found

    def promised(self) -> int:
        """Bytes promised to loads and not allocated yet."""
        return sum(int(m["promised_bytes"]) for m in self.daemon.status()["models"])

    def post(self, path: str) -> dict[str, Any]:
        answer = httpx.post(f"{self.daemon.url}{path}", json={}, timeout=120)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found
