"""T69: a real daemon, real streams, and a machine that slept for a night meanwhile."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.daemon.test_life import EOS_OFF, Stream, chat
from tests.support.daemon import DaemonProcess, link_models, link_or_copy

pytestmark = pytest.mark.alone

NIGHT = 10 * 3600


class SleepyDaemon(DaemonProcess):
    def __init__(self, home: Path, slept: Path) -> None:
        root = str(Path(__file__).parents[3])
        path = f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        config = "[models]\nidle_timeout = 100\nqueue_deadline = 100\ndrain_deadline = 100\n"
        environ = {"OMLXD_TEST_SLEPT": str(slept), "PYTHONPATH": path}
        super().__init__(home, config=config, environ=environ)
        self.command = [
            *(sys.executable, "-m", "tests.support.sleepy_daemon", "serve"),
            *("--home", str(home), "--port", "0"),
        ]
        self._slept = slept
        self.sleep_machine(0)

    def sleep_machine(self, seconds: float) -> None:
        new = self._slept.with_suffix(".new")
        new.write_text(str(seconds))
        new.replace(self._slept)

    def model(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = next(m for m in self.status()["models"] if m["id"] == name)
        return found


@pytest.fixture
def sleepy(tmp_path: Path, tiny: Path, second_tiny: Path) -> Iterator[SleepyDaemon]:
    home = tmp_path / "home"
    link_models(home, tiny)
    other = home / "models/other"
    other.mkdir()
    for file in second_tiny.iterdir():
        link_or_copy(file, other / file.name)
    daemon = SleepyDaemon(home, tmp_path / "slept")
    with daemon:
        yield daemon
        assert daemon.stop() == 0


def test_t69_after_a_night_streams_go_on_models_stay_and_who_left_holds_nothing(
    sleepy: SleepyDaemon, tiny: Path
) -> None:
    assert httpx.post(
        f"{sleepy.url}/v1/chat/completions", json=chat("other", max_tokens=2), timeout=60
    ).is_success
    stream = Stream(sleepy, chat(tiny, max_tokens=1500, temperature=0, **EOS_OFF))
    assert stream.first.wait(30)
    # This client is gone when the machine wakes up.
    client = httpx.Client(base_url=sleepy.url, timeout=60)
    body = {**chat(tiny, "gone", max_tokens=50_000, **EOS_OFF), "stream": True}
    with client.stream("POST", "/v1/chat/completions", json=body) as gone:
        lines = gone.iter_lines()
        next(lines)
        sleepy.until(lambda: sleepy.model(tiny.name)["leases"] == 2, "not two leases")
        sleepy.sleep_machine(NIGHT)
        received = len(stream.chunks)
    client.close()
    sleepy.until(lambda: len(sleepy.events("woke_up")) == 1, "nobody woke up", 40)
    assert sleepy.events("woke_up")[0]["slept_seconds"] == pytest.approx(NIGHT, abs=2)
    sleepy.until(lambda: sleepy.model(tiny.name)["leases"] <= 1, "the lease stayed")
    time.sleep(0.3)
    assert len(stream.chunks) > received or not stream.is_alive()
    assert [sleepy.model(name)["state"] for name in (tiny.name, "other")] == ["ready", "ready"]
    stream.ended(60)
    assert stream.error is None
    assert stream.chunks[-1]["choices"][0]["finish_reason"] == "length"  # type: ignore[index]
    answer = httpx.post(
        f"{sleepy.url}/v1/chat/completions", json=chat(tiny, max_tokens=2), timeout=60
    )
    assert answer.status_code == 200
    sleepy.until(lambda: sleepy.model(tiny.name)["leases"] == 0, "a lease stayed")
    assert not sleepy.events("model_draining")
