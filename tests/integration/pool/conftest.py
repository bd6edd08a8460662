"""Two models that weigh something, and a machine on which only one of them fits."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.guard.conftest import Squeezed
from tests.support.daemon import DaemonProcess, link_models
from tests.support.tiny_models import tiny_model

CONTEXT = 4096
WEIGHTY = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 2,
    "max_position_embeddings": CONTEXT,
}
"""Some 110 MB of weights, and 512 bytes of cache for each token: what counts is the weights."""


@pytest.fixture(scope="session")
def weighty(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two models of one size, named a and b."""
    root = tmp_path_factory.mktemp("weighty")
    a, b = (
        tiny_model(root, "llama", seed=seed, **WEIGHTY).rename(root / name)
        for seed, name in enumerate("ab")
    )
    return a, b


class Machine(Squeezed):
    """A daemon with models a and b, warmed up and empty."""

    def __init__(self, daemon: DaemonProcess, models: tuple[str, ...] = ("a", "b")) -> None:
        super().__init__(daemon)
        for model in models:
            answer = self.ask(model, prompt=[5] * 64)
            assert answer.status_code == 200, answer.text
        self.empty()

    def need(self, model: str) -> int:
        """Bytes that the admission wants for a load: weights, and a first prompt."""
        found = self.daemon.get(f"/v1/models/{model}/fit?context=2048&concurrency=1")
        return sum(found[part] for part in ("weights_bytes", "kv_bytes", "prefill_bytes"))

    def weights(self, model: str) -> int:
        models = self.daemon.status()["models"]
        return next(int(m["weights_bytes"]) for m in models if m["id"] == model)

    def room_for_one(self) -> None:
        """Put the marks so that a or b fits, and never both."""
        used, need, weights = self.settled_usage(), self.need("a"), self.weights("b")
        self.marks(soft=used + need + weights * 4 // 10, hard=used + need + weights * 6 // 10)

    def loads(self, model: str) -> int:
        """Since the daemon began."""
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


MakeMachine = Callable[..., Machine]


@pytest.fixture
def machine(tmp_path: Path, weighty: tuple[Path, Path]) -> Iterator[MakeMachine]:
    """Starts machines that end with the test."""
    yield from _starting(tmp_path, weighty)


@pytest.fixture(scope="module")
def module_machine(
    tmp_path_factory: pytest.TempPathFactory, weighty: tuple[Path, Path]
) -> Iterator[MakeMachine]:
    """Starts machines that last as long as the module."""
    yield from _starting(tmp_path_factory.mktemp("pool"), weighty)


def _starting(folder: Path, models: tuple[Path, ...]) -> Iterator[MakeMachine]:
    with ExitStack() as stack:

        def start(config: str = "") -> Machine:
            home = folder / "home"
            link_models(home, *models)
            daemon = DaemonProcess(home, config=f"models.scan_every = 600\n{config}")
            return Machine(stack.enter_context(daemon))

        yield start
