"""The guard of a real daemon process: its routes, its memory of itself, its commands."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.daemon import DaemonProcess, link_models
from tests.support.tiny_models import tiny_model

PATH = "/v1/memory-guard"
GiB = 1024**3
HEAVY = (
    *("mlx", "mlx_lm", "transformers", "pydantic", "fastapi", "structlog", "uvicorn", "rich"),
    *("click", "numpy", "huggingface_hub", "psutil"),
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"), "llama", max_position_embeddings=65536)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Iterator[DaemonProcess]:
    home = tmp_path_factory.mktemp("guarded")
    link_models(home, tiny)
    config = '[models]\nqueue_deadline = 2.0\n[log]\nformat = "json"\n'
    with DaemonProcess(home, config=config) as running:
        yield running
        assert running.stop() == 0


@pytest.fixture
def daemon(shared: DaemonProcess) -> Iterator[DaemonProcess]:
    """The daemon of this file; each test leaves it with the configuration's own policy."""
    yield shared
    keys = shared.get(PATH)["policy"]
    with shared.client() as client:
        assert client.put(PATH, json=dict.fromkeys(keys)).status_code == 200


def put(daemon: DaemonProcess, **body: Any) -> httpx.Response:
    with daemon.client() as client:
        return client.put(PATH, json=body)


def changed(daemon: DaemonProcess, **body: Any) -> Any:
    answer = put(daemon, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_ceiling_that_the_tier_ignores_is_refused_and_the_effective_one_is_shown(
    daemon: DaemonProcess,
) -> None:
    """T04."""
    refused = put(daemon, custom_ceiling_gb=2)
    assert refused.status_code == 400
    assert "'balanced'" in refused.json()["error"]["message"]
    shown = daemon.get(PATH)
    assert shown["ceiling"]["binding"] in ("static", "dynamic")
    assert shown["ceiling"]["bytes"] == min(v for v in shown["ceiling"]["terms"].values() if v)


def test_the_same_mistake_in_the_configuration_ends_the_start(tmp_path: Path) -> None:
    """T04."""
    config = '[guard]\ncustom_ceiling = "60GB"\n'
    stopped = DaemonProcess(tmp_path, config=config)
    stopped.spawn()
    assert stopped.wait() == 78
    assert "custom ceiling" in stopped.tail()


def test_a_clamp_is_reported_with_its_cause_and_so_at_the_next_start(
    tmp_path: Path, tiny: Path
) -> None:
    """T05, and what was set over the API survives a restart."""
    first = DaemonProcess(tmp_path)
    with first:
        total = first.get(PATH)["readings"]["total"]["value"]
        shown = changed(first, tier="custom", custom_ceiling_gb=10 * total / GiB)
        (clamp,) = shown["clamps"]
        assert clamp["cause"] == "ram_reserve"
        assert shown["ceiling"]["bytes"] == clamp["effective"] == total - 2 * GiB
        assert changed(first, custom_ceiling_gb=3)["clamps"] == []
        changed(first, custom_ceiling_gb=10 * total / GiB, soft_threshold=0.8, enforce=False)
        before = first.get(PATH)["policy"]
        assert first.stop() == 0
    with DaemonProcess(tmp_path) as second:
        shown = second.get(PATH)
        assert shown["policy"] == before
        assert shown["policy"]["tier"] == {"value": "custom", "set": "custom", "origin": "api"}
        assert shown["monitor"]
        assert second.events("guard_setting_clamped")[-1]["cause"] == "ram_reserve"
        assert second.stop() == 0


def test_a_damaged_memory_of_settings_is_kept_aside_and_said(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / "guard.json").write_text('{"tier": "cust')
    with DaemonProcess(tmp_path) as running:
        assert running.get(PATH)["policy"]["tier"]["value"] == "balanced"
        assert running.events("guard_settings_lost")
        assert len(list(state.glob("guard.json.*"))) == 1
        assert running.stop() == 0


def test_what_the_environment_fixes_is_a_conflict(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, environ={"OMLXD_GUARD_TIER": "safe"}) as running:
        refused = put(running, tier="aggressive")
        assert refused.status_code == 409
        assert "OMLXD_GUARD_TIER" in refused.json()["error"]["message"]
        assert running.get(PATH)["policy"]["tier"]["origin"] == "environment"
        assert running.stop() == 0


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"[]", "JSON object"),
        (b"{", "not valid JSON"),
        (b'{"teir": "safe"}', "'teir'"),
        (b'{"soft_threshold": NaN}', "'soft_threshold'"),
        (b'{"custom_ceiling_gb": Infinity}', "'custom_ceiling_gb'"),
        (b'{"hard_threshold": 0}', "'hard_threshold'"),
        (b'{"tier": "custom", "custom_ceiling_gb": -3}', "'custom_ceiling_gb'"),
        (b'{"soft_threshold": 0.97}', "soft_threshold"),
    ],
)
def test_wrong_bodies_are_refused_by_name(daemon: DaemonProcess, body: bytes, named: str) -> None:
    before = daemon.get(PATH)["policy"]
    with daemon.client() as client:
        answer = client.put(PATH, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert named in answer.json()["error"]["message"]
    assert daemon.get(PATH)["policy"] == before


def test_settings_that_cannot_be_saved_are_not_changed(daemon: DaemonProcess) -> None:
    changed(daemon, tier="safe")
    file = daemon.home / "state" / "guard.json"
    file.unlink()
    file.mkdir()
    try:
        answer = put(daemon, tier="aggressive")
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "state_unwritable")
        assert daemon.get(PATH)["policy"]["tier"]["value"] == "safe"
    finally:
        file.rmdir()


def test_a_follower_gets_the_past_then_what_happens_and_may_leave(daemon: DaemonProcess) -> None:
    with daemon.client() as client, client.stream("GET", f"{PATH}/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        events = (json.loads(ln[6:]) for ln in stream.iter_lines() if ln.startswith("data: "))
        first = next(events)
        changed(daemon, tier="custom", custom_ceiling_gb=0.01)
        last = next(event for event in events if event["level"] == "hard")
    assert last["number"] > first["number"]
    assert last["reading"]["footprint"] == last["usage_bytes"]
    assert last["reason"]


def test_a_stop_lets_followers_go(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as running, running.client() as client:
        with client.stream("GET", f"{PATH}/events") as stream:
            lines = stream.iter_lines()
            next(lines)
            began = time.monotonic()
            assert running.stop() == 0
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert time.monotonic() - began < 10


@contextmanager
def endless_stream(daemon: DaemonProcess, model: str) -> Iterator[list[dict[str, Any]]]:
    """A request that runs as long as the block, unless it is ended; what it got so far."""
    got: list[dict[str, Any]] = []
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Tell me everything."}],
        "max_tokens": 60000,
        "logit_bias": {"0": -100, "2": -100},
        "stream": True,
    }
    leave = threading.Event()

    def read() -> None:
        with (
            daemon.client() as client,
            client.stream("POST", "/v1/chat/completions", json=body) as answer,
        ):
            for line in answer.iter_lines():
                if leave.is_set():
                    return
                if line.startswith("data: {"):
                    got.append(json.loads(line[6:]))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        daemon.until(lambda: len(got) > 2, "the stream did not begin", limit=60)
        yield got
    finally:
        leave.set()
        reader.join(60)
        assert not reader.is_alive()


def usage_of(daemon: DaemonProcess) -> float:
    """GiB that the guard sees now."""
    with daemon.client() as client:
        usage: int = client.put(PATH, json={}).json()["usage_bytes"]
    return usage / GiB


def test_a_request_ended_by_the_guard_is_told_why(daemon: DaemonProcess, tiny: Path) -> None:
    """Each names usage, the estimate, the limit, the mark that tripped, the binding term and its
    remedy."""
    with endless_stream(daemon, tiny.name) as got:
        changed(daemon, tier="custom", custom_ceiling_gb=usage_of(daemon) / 0.985)
        daemon.until(lambda: "error" in got[-1], "the request was not ended")
        error = got[-1]["error"]
    assert error["code"] == "memory_pressure_aborted"
    assert error["mark"] in ("hard", "ceiling")
    assert error["usage_bytes"] >= error["limit_bytes"] > 0
    assert error["binding"] == "custom"
    assert error["remedy"] == "Raise the custom ceiling."
    assert error["estimate_bytes"] is None
    changed(daemon, tier=None, custom_ceiling_gb=None)
    with endless_stream(daemon, tiny.name) as got:
        assert "error" not in got[-1]


def test_a_paused_request_waits_and_gets_503_at_its_deadline(
    daemon: DaemonProcess, tiny: Path
) -> None:
    """Does not fit now: waits in the queue; at its deadline 503 ``memory_pressure``."""
    body = {"model": tiny.name, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    with endless_stream(daemon, tiny.name) as got:
        ceiling = usage_of(daemon) * 1.5
        shown = changed(
            daemon,
            tier="custom",
            custom_ceiling_gb=ceiling,
            soft_threshold=0.4,
            hard_threshold=0.99,
        )
        assert (shown["level"], shown["admission_paused"]) == ("soft", True)
        with daemon.client() as client:
            answer = client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 503
        error = answer.json()["error"]
        assert (error["code"], error["mark"]) == ("memory_pressure", "soft")
        assert error["waited_seconds"] >= 2.0
        assert int(answer.headers["retry-after"]) >= 1
        seen = len(got)
        daemon.until(lambda: len(got) > seen, "the running request was not left alone")


def test_status_and_guard_answer_while_requests_run(daemon: DaemonProcess, tiny: Path) -> None:
    """T19; how fast is for the benchmark to say."""
    with endless_stream(daemon, tiny.name):
        for _ in range(20):
            status = daemon.status()
            daemon.get(PATH)
        assert status["poll_interval_seconds"] == 1.0
        assert status["readings"]["footprint"]["age_seconds"] < 5.0
        assert status["readings"]["allocator"]["active"] > 0


# Commands


def command(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "omlxd", *words, "--home", str(home)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_commands_show_and_change_a_running_daemon(daemon: DaemonProcess) -> None:
    shown = command(daemon.home, "status")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith("omlxd ")
    status = json.loads(command(daemon.home, "status", "--json").stdout)
    assert status["server"]["port"] == daemon.port
    done = command(daemon.home, "guard", "set", "--tier", "custom", "--ceiling", "3GB")
    assert done.returncode == 0, done.stderr
    assert "custom" in done.stdout
    assert daemon.get(PATH)["ceiling"]["bytes"] == 3 * GiB
    answer = json.loads(command(daemon.home, "guard", "--json").stdout)
    assert answer["policy"]["tier"]["value"] == "custom"
    assert command(daemon.home, "guard", "set", "--reset", "all").returncode == 0
    assert daemon.get(PATH)["policy"]["tier"]["origin"] == "default"


def test_a_refusal_of_the_daemon_is_shown_as_it_is(daemon: DaemonProcess) -> None:
    refused = command(daemon.home, "guard", "set", "--ceiling", "3GB")
    assert refused.returncode == 1
    assert refused.stdout == ""
    assert "The tier is 'balanced', which ignores a custom ceiling." in refused.stderr


def test_events_are_printed_as_they_come(daemon: DaemonProcess) -> None:
    words = [sys.executable, "-m", "omlxd", "guard", "events", "--home", str(daemon.home)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        following.stdout.readline()
        changed(daemon, tier="custom", custom_ceiling_gb=0.01)
        assert any("  hard" in line for line in following.stdout)
        following.terminate()


def test_without_a_daemon_the_commands_say_so(tmp_path: Path) -> None:
    for words in (("status",), ("guard",), ("guard", "set", "--tier", "safe")):
        failed = command(tmp_path, *words)
        assert failed.returncode == 1
        assert "omlxd is not running" in failed.stderr
        assert "Traceback" not in failed.stderr


def test_an_instance_file_that_a_killed_daemon_left_is_seen_through(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as running:
        running.process.kill()
        running.process.wait()
    failed = command(tmp_path, "status")
    assert failed.returncode == 1
    assert "is gone" in failed.stderr


def test_an_address_where_nothing_listens_is_named(tmp_path: Path) -> None:
    failed = command(tmp_path, "status", "--url", "http://127.0.0.1:9")
    assert failed.returncode == 1
    assert "nothing answers at http://127.0.0.1:9" in failed.stderr


def test_a_command_imports_nothing_heavy(daemon: DaemonProcess) -> None:
    """What makes it quick; ``scripts/bench start`` times it."""
    look = (
        "import sys; from omlxd.cli.main import run; "
        f"code = run(['guard', 'show', '--home', {str(daemon.home)!r}]); "
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    seen = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert seen.stderr.strip() == "[]"
