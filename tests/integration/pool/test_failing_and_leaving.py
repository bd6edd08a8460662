"""Models that are not there when asked for: idle ones come back, broken ones are let alone."""

import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.support.daemon import DaemonProcess
from tests.support.machine import Machine
from tests.support.tiny_models import tiny_model

pytestmark = pytest.mark.alone

IDLE = 4.0
"""Seconds; far more than lies between requests that are sent at once."""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Models a and b of no weight, in folders of the daemon's own; a is unloaded when idle."""
    home = tmp_path_factory.mktemp("small")
    made = tiny_model(tmp_path_factory.mktemp("tiny"), "llama")
    for name in "ab":
        shutil.copytree(made, home / "models" / name)
    config = (
        "[models]\nscan_every = 600\nretry_first = 600\n"
        f"[models.settings.a]\nidle_timeout = {IDLE}\n"
    )
    with DaemonProcess(home, config=config) as daemon:
        yield Machine(daemon)
        assert daemon.stop() == 0


def weights_of(machine: Machine, model: str) -> Path:
    return machine.daemon.home / "models" / model / "model.safetensors"


def test_t09_four_requests_for_a_cold_model_share_a_load_again_after_its_idle_timeout(
    small: Machine,
) -> None:
    for first in (True, False):
        small.until_state("a", "absent")
        before = small.loads("a")
        began = time.monotonic()
        with ThreadPoolExecutor(4) as clients:
            answers = list(clients.map(lambda _: small.ask("a").status_code, range(4)))
        assert answers == [200] * 4
        assert small.loads("a") == before + 1
        if first:
            small.until_state("a", "absent")
            assert time.monotonic() - began > IDLE
    reasons = {event["reason"] for event in small.daemon.events("model_draining")}
    assert "idle" in reasons


def test_t61_a_file_cut_after_the_scan_fails_its_load_and_the_next_try_waits(
    small: Machine,
) -> None:
    whole = weights_of(small, "b").read_bytes()
    os.truncate(weights_of(small, "b"), len(whole) // 2)
    answers: list[httpx.Response] = [small.ask("b") for _ in range(5)]
    for answer in answers:
        assert answer.status_code == 500
        error = answer.json()["error"]
        assert error["code"] == "model_broken"
        assert error["file"] == "model.safetensors"
        assert str(small.daemon.home) not in answer.text
    assert len(small.daemon.events("model_load_failed")) == 1, "it was tried again at once"
    status = small.model("b")
    assert status["state"] == "failed"
    assert status["promised_bytes"] == 0
    assert 0 < status["problem"]["retry_in"] <= 600
    assert small.ask("a").status_code == 200

    weights_of(small, "b").write_bytes(whole)
    small.post("/v1/models/rescan")
    assert small.ask("b").status_code == 200
