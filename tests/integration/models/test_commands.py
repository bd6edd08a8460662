"""``omlxd models`` and the routes behind it, against a real daemon."""

import json
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.integration.models.conftest import Command
from tests.support.daemon import DaemonProcess
from tests.support.fake_hub import FakeHub, Repo


@pytest.fixture
def llama(tiny_models: tuple[Path, ...]) -> str:
    return tiny_models[0].name


def status_of(daemon: DaemonProcess, model_id: str) -> dict[str, object]:
    found: dict[str, object] = next(m for m in daemon.status()["models"] if m["id"] == model_id)
    return found


def test_the_life_of_a_model_from_the_command_line(
    daemon: DaemonProcess, omlxd: Command, llama: str
) -> None:
    listed = omlxd("list")
    assert listed.returncode == 0, listed.stderr
    assert llama in listed.stdout
    assert "! org/broken: model.safetensors" in listed.stdout
    models = json.loads(omlxd("list", "--json").stdout)
    states = {m["id"]: m["state"] for m in models}
    assert (states[llama], states["org/broken"]) == ("absent", "broken")

    loaded = omlxd("load", llama)
    assert loaded.returncode == 0, loaded.stderr
    assert "is loaded" in loaded.stdout
    assert status_of(daemon, llama)["state"] == "ready"

    refused = omlxd("rm", llama, "--yes")
    assert refused.returncode == 1
    assert "models unload" in refused.stderr
    assert (daemon.home / "models" / llama).is_dir()

    unloaded = omlxd("unload", llama)
    assert unloaded.returncode == 0, unloaded.stderr
    assert status_of(daemon, llama)["state"] == "absent"

    assert omlxd("pin", "org/broken").returncode == 0
    assert omlxd("unpin", "org/broken").returncode == 0
    with daemon.client() as client:
        wished = client.patch(f"/v1/models/{llama}", json={"aliases": ["mine"], "default": True})
        assert wished.status_code == 200, wished.text
    assert daemon.status()["server"]["default_model"] == llama
    unasked = omlxd("rm", llama)
    assert unasked.returncode == 1
    assert "--yes" in unasked.stderr
    removed = omlxd("rm", llama, "--yes")
    assert removed.returncode == 0, removed.stderr
    assert not (daemon.home / "models" / llama).exists()
    assert llama not in {m["id"] for m in daemon.status()["models"]}
    assert daemon.status()["server"]["default_model"] is None
    kept = json.loads((daemon.home / "state" / "models.json").read_text())
    assert list(kept["models"]) == ["org/broken"]


def test_an_error_of_the_daemon_is_one_sentence(daemon: DaemonProcess, omlxd: Command) -> None:
    for arguments in (("load", "nobody/none"), ("fit", "nobody/none"), ("pin", "nobody/none")):
        done = omlxd(*arguments)
        assert done.returncode == 1
        assert "does not exist here" in done.stderr
        assert "Traceback" not in done.stderr
    broken = omlxd("load", "org/broken")
    assert broken.returncode == 1
    assert "model.safetensors" in broken.stderr


def test_a_fit_is_what_the_model_really_takes(
    daemon: DaemonProcess, omlxd: Command, llama: str
) -> None:
    text = omlxd("fit", llama, "--context", "2048", "--concurrency", "2")
    assert text.returncode == 0, text.stderr
    assert "balanced *" in text.stdout
    fit = json.loads(omlxd("fit", llama, "--context", "2048", "--json").stdout)
    # 2 layers with 2 heads of 16 elements, keys and values, in float32.
    assert fit["kv_bytes"] == 2 * 2 * 2 * 16 * 4 * 2048
    assert fit["total_bytes"] == sum(fit[f"{part}_bytes"] for part in ("weights", "kv", "prefill"))
    assert set(fit["tiers"]) == {"safe", "balanced", "aggressive", "custom"}
    assert omlxd("load", llama).returncode == 0
    loaded = json.loads(omlxd("fit", llama, "--context", "2048", "--json").stdout)
    assert loaded["loaded"] is True
    assert loaded["weights_bytes"] == fit["weights_bytes"]
    too_long = omlxd("fit", llama, "--context", "100000")
    assert too_long.returncode == 1
    assert "4096" in too_long.stderr


def test_settings_over_http_survive_a_restart(daemon: DaemonProcess, llama: str) -> None:
    path = f"/v1/models/{llama}"
    change = {"temperature": 0.25, "aliases": ["tiny", "small"], "context_length": 512}
    with daemon.client() as client:
        answer = client.patch(path, json=change)
        assert answer.status_code == 200, answer.text
        assert client.get("/v1/models/tiny").json()["id"] == llama
        wrong = client.patch(path, json={"temperature": 5})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "temperature")
        plain = client.patch(path, content="{}", headers={"content-type": "text/plain"})
        assert plain.status_code == 415
    assert daemon.stop() == 0
    daemon.start()
    with daemon.client() as client:
        shown = client.get("/v1/models/small").json()
        assert shown["settings"]["temperature"] == {"value": 0.25, "origin": "api"}
        assert shown["context_length"] == 512
        client.patch(path, json=dict.fromkeys(change))
        assert client.get(path).json()["settings"] == {}
        assert client.get(path).json()["context_length"] == 4096


def test_a_pinned_model_is_loaded_at_the_next_start(
    daemon: DaemonProcess, omlxd: Command, llama: str
) -> None:
    assert "is pinned" in omlxd("pin", llama).stdout
    assert daemon.stop() == 0
    daemon.start()
    daemon.until(lambda: status_of(daemon, llama)["state"] == "ready", "it was not preloaded")
    assert "not pinned" in omlxd("unpin", llama).stdout
    assert status_of(daemon, llama)["pinned"] is False


def test_a_pulled_model_is_served_without_a_restart(
    daemon: DaemonProcess, omlxd: Command, tiny_models: tuple[Path, ...]
) -> None:
    files = {file.name: file.read_bytes() for file in tiny_models[0].iterdir() if file.is_file()}
    with FakeHub() as hub:
        hub.repos["some-org/tiny"] = Repo(files)
        pulled = omlxd("pull", "some-org/tiny", **hub.environ)
    assert pulled.returncode == 0, pulled.stderr
    answer = httpx.post(
        f"{daemon.url}/v1/completions",
        json={"model": "some-org/tiny", "prompt": "The sea", "max_tokens": 3, "temperature": 0},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    assert omlxd("unload", "some-org/tiny").returncode == 0
    assert omlxd("rm", "some-org/tiny", "--yes").returncode == 0
    assert not (daemon.home / "models" / "some-org").exists()


def test_without_a_daemon_the_commands_say_that_nothing_runs(omlxd: Command) -> None:
    for arguments in (("list",), ("load", "a/b"), ("fit", "a/b"), ("pin", "a/b")):
        done = omlxd(*arguments)
        assert done.returncode == 1
        assert "omlxd serve" in done.stderr


def test_the_command_line_starts_fast(tmp_path: Path) -> None:
    """Nothing heavy is imported before a command needs it: under 0.4 s on an idle machine."""
    loads = "import sys, omlxd.cli.main; print(*sys.modules)"
    modules = subprocess.run(
        [sys.executable, "-c", loads], capture_output=True, text=True, check=True
    ).stdout.split()
    heavy = {"mlx", "mlx_lm", "fastapi", "pydantic", "httpx", "huggingface_hub", "transformers"}
    assert not heavy & set(modules)
    times = []
    for _ in range(3):
        began = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "omlxd", "models", "--home", str(tmp_path), "list"],
            capture_output=True,
            check=False,
        )
        times.append(time.monotonic() - began)
    assert min(times) < 1.0  # the machine of the tests is shared
