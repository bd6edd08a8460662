"""A model loads while another one decodes: neither the tokens nor the machine wait for it."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import httpx
import pytest

from omlxd.units import MiB
from tests.integration.pool.conftest import MakeMachine
from tests.support.daemon import link_models, payloads
from tests.support.machine import Machine
from tests.support.squeeze import NO_END
from tests.support.tiny_models import tiny_model

pytestmark = pytest.mark.alone

MANY_PIECES = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 32}
"""Some 420 MB in arrays of 4 MiB and less."""
KEPT = 0.6
"""Share of its token rate that the running model keeps at least."""
SECONDS, ATTEMPTS = 3.0, 3
PIECE = 64 * MiB + 4 * MiB
"""Bytes: the default, rounded up by one array."""


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("big")
    return tiny_model(root, "llama", **MANY_PIECES).rename(root / "big")


class Tokens(threading.Thread):
    """A client that notes when each token of one endless answer came."""

    def __init__(self, url: str, model: str) -> None:
        super().__init__(daemon=True)
        self._url = f"{url}/v1/completions"
        self._body = {
            "model": model,
            "prompt": "hello",
            "max_tokens": 4000,
            "temperature": 0,
            "stream": True,
            **NO_END,
        }
        self.times: list[float] = []
        self.leave = threading.Event()
        self.start()

    def run(self) -> None:
        with httpx.stream("POST", self._url, json=self._body, timeout=120) as answer:
            for _ in payloads(answer.iter_lines()):
                self.times.append(time.monotonic())
                if self.leave.is_set():
                    return

    def rate(self, begin: float, end: float) -> float:
        """Tokens a second."""
        return sum(begin <= at < end for at in self.times) / (end - begin)


@pytest.fixture(scope="module")
def beside(module_machine: MakeMachine, big: Path) -> Machine:
    running = module_machine()
    link_models(running.daemon.home, big)
    running.post("/v1/models/rescan")
    return running


@pytest.fixture
def decoding(beside: Machine) -> Iterator[tuple[Machine, Tokens]]:
    tokens = Tokens(beside.daemon.url, "a")
    beside.until(lambda: len(tokens.times) > 10, "a does not decode")
    yield beside, tokens
    tokens.leave.set()
    tokens.join(60)
    assert not tokens.is_alive()
    beside.empty()


def test_a_load_leaves_the_running_model_most_of_its_rate(
    decoding: tuple[Machine, Tokens],
) -> None:
    machine, tokens = decoding
    kept = []
    for _ in range(ATTEMPTS):
        begin = time.monotonic()
        time.sleep(SECONDS)
        loading = time.monotonic()
        machine.post("/v1/models/big/load")
        ready = time.monotonic()
        assert machine.state("big") == "ready"
        kept.append(tokens.rate(loading, ready) / tokens.rate(begin, loading))
        machine.post("/v1/models/big/unload")
    assert median(kept) >= KEPT, kept
    assert len(tokens.times) < 4000


def test_a_load_ends_within_one_piece_when_its_only_client_leaves(
    decoding: tuple[Machine, Tokens],
) -> None:
    """And what it was promised and what it took are free again."""
    machine, tokens = decoding
    before, too_late = machine.settled_usage(), []
    for _ in range(ATTEMPTS):
        gone = leave_while_loading(machine)
        machine.until(lambda: machine.state("big") == "absent", "the load goes on")
        too_late.append(machine.daemon.events("model_load_cancelled")[-1]["loaded_bytes"] - gone)
        assert machine.promised() == 0
        assert machine.model("big")["waiting"] == 0
    assert median(too_late) <= PIECE, too_late
    assert machine.usage() - before < PIECE
    so_far = len(tokens.times)
    machine.until(lambda: len(tokens.times) > so_far + 5, "a does not go on")
    assert machine.ask("big").status_code == 200


def leave_while_loading(machine: Machine) -> int:
    """Ask for the big model, and hang up when a part of it is loaded: bytes of that part."""
    body = json.dumps({"model": "big", "prompt": "hello", "max_tokens": 4}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:{machine.daemon.port}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", machine.daemon.port), timeout=10) as client:
        client.sendall(head.encode() + body)
        machine.until(lambda: (machine.model("big")["loaded_bytes"] or 0) > 0, "it does not load")
        loaded = int(machine.model("big")["loaded_bytes"])
        assert machine.promised() > 0
    return loaded
