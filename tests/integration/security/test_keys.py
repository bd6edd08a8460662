"""API keys against a real daemon: clients, commands, changes while it runs, the far reach."""

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import openai
import pytest

from tests.integration.conftest import MakeDaemon
from tests.support.daemon import DaemonProcess

MESSAGES = [{"role": "user", "content": "xyzzy-prompt"}]


def omlxd(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("OMLXD")}
    return subprocess.run(
        [sys.executable, "-m", "omlxd", *arguments, "--home", str(home)],
        capture_output=True,
        text=True,
        timeout=60,
        env=environ,
    )


def add(home: Path, name: str, scope: str = "inference") -> str:
    made = omlxd(home, "key", "add", name, "--scope", scope)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def ask(daemon: DaemonProcess, key: str, model: Path) -> str | None:
    client = openai.OpenAI(base_url=f"{daemon.url}/v1", api_key=key, max_retries=0, timeout=60)
    with client:
        answer = client.chat.completions.create(
            model=model.name,
            messages=MESSAGES,  # type: ignore[arg-type]
            max_tokens=3,
        )
    return answer.choices[0].message.content


def test_the_openai_sdk_with_keys_that_come_and_go(make_daemon: MakeDaemon, tiny: Path) -> None:
    daemon = make_daemon("--log-level", "debug", models=(tiny,))
    ask(daemon, "a-dummy", tiny)
    key = add(daemon.home, "laptop")
    with pytest.raises(openai.AuthenticationError) as refused:
        ask(daemon, "a-dummy", tiny)
    assert refused.value.code == "invalid_api_key"
    assert "a-dummy" not in str(refused.value)
    ask(daemon, key, tiny)
    ask(daemon, f"{key}=", tiny)
    second = add(daemon.home, "phone")
    assert omlxd(daemon.home, "key", "revoke", "laptop").returncode == 0
    with pytest.raises(openai.AuthenticationError):
        ask(daemon, key, tiny)
    ask(daemon, second, tiny)
    listed = omlxd(daemon.home, "key", "list")
    assert "phone" in listed.stdout
    assert "laptop" not in listed.stdout
    assert second not in listed.stdout + listed.stderr
    assert daemon.stop() == 0
    log = daemon.log.read_text()
    assert len(daemon.events("keys_changed")) == 2
    for secret in (key, second, key.removeprefix("omlxd_"), "a-dummy", "xyzzy-prompt"):
        assert secret not in log


def test_a_key_for_inference_cannot_look_or_change(make_daemon: MakeDaemon, tiny: Path) -> None:
    daemon = make_daemon(models=(tiny,))
    bearer = {"authorization": f"Bearer {add(daemon.home, 'app')}"}
    with httpx.Client(base_url=daemon.url, headers=bearer, timeout=60) as client:
        assert client.get("/v1/models").status_code == 200
        assert client.get("/ready").status_code == 200
        for answer in (
            client.get("/status"),
            client.post(f"/v1/models/{tiny.name}/load", json={}),
            client.post(f"/v1/models/{tiny.name}/unload", json={}),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
    assert httpx.get(f"{daemon.url}/status").status_code == 401
    assert httpx.get(f"{daemon.url}/health").status_code == 200


def test_our_own_commands_need_no_key(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    add(daemon.home, "app")
    status = omlxd(daemon.home, "status")
    assert status.returncode == 0, status.stderr
    local = daemon.home / "state/local.key"
    assert stat.S_IMODE(local.stat().st_mode) == 0o600
    assert local.read_text().strip() not in daemon.log.read_text()
    assert daemon.stop() == 0
    assert not local.exists()


def test_listening_beyond_this_machine_without_a_key_is_refused(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::"):
        if host == "::" and not socket.has_ipv6:
            continue
        refused = omlxd(tmp_path, "serve", "--host", host, "--port", "0")
        assert refused.returncode == 78, refused.stderr
        assert "omlxd key add" in refused.stderr
        assert "127.0.0.1" in refused.stderr
        assert "Traceback" not in refused.stderr


def test_with_a_key_it_listens_there_and_stays_closed_when_the_key_goes(
    make_daemon: MakeDaemon, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    key = add(home, "app", "all")
    daemon = DaemonProcess(home, "--host", "0.0.0.0")
    daemon.spawn()
    try:
        daemon.until(lambda: daemon.instance() is not None, "no port")
        daemon.until(lambda: daemon.answers("/health"), "no answer")
        bearer = {"authorization": f"Bearer {key}"}
        assert httpx.get(f"{daemon.url}/status").status_code == 401
        assert httpx.get(f"{daemon.url}/status", headers=bearer).status_code == 200
        assert omlxd(home, "key", "revoke", "app").returncode == 0
        assert httpx.get(f"{daemon.url}/status", headers=bearer).status_code == 401
        assert httpx.get(f"{daemon.url}/status").status_code == 401
    finally:
        assert daemon.stop() == 0


@pytest.mark.parametrize(
    ("damage", "remedy"),
    [
        (lambda path: path.chmod(0o644), "chmod 600"),
        (lambda path: path.write_text("{"), "damaged"),
        (lambda path: path.parent.chmod(0o777), "chmod 700"),
    ],
)
def test_a_key_file_that_cannot_be_trusted_stops_the_start(
    tmp_path: Path, damage: object, remedy: str
) -> None:
    add(tmp_path, "app")
    damage(tmp_path / "state/keys.json")  # type: ignore[operator]
    refused = omlxd(tmp_path, "serve", "--port", "0")
    (tmp_path / "state").chmod(0o700)
    assert refused.returncode == 78
    assert remedy in refused.stderr
    assert "Traceback" not in refused.stderr


def test_the_unix_socket_serves_its_owner_without_a_key(
    make_daemon: MakeDaemon, short_folder: Path, tiny: Path
) -> None:
    path = short_folder / "run" / "o.sock"
    daemon = make_daemon(models=(tiny,), config=f"[server]\nsocket = '{path}'\n")
    add(daemon.home, "app")
    with httpx.Client(
        transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost", timeout=60
    ) as client:
        status = client.get("/status").json()
        assert status["server"]["instance_id"] == daemon.get("/health")["instance_id"]
        body = {"model": tiny.name, "messages": MESSAGES, "max_tokens": 2}
        assert client.post("/v1/chat/completions", json=body).status_code == 200
        assert client.get("/status", headers={"host": "evil.example"}).status_code == 403
        assert client.get("/status", headers={"origin": "null"}).status_code == 403
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert daemon.stop() == 0
    assert not path.exists()


def test_a_second_daemon_does_not_take_the_socket_of_the_first(
    make_daemon: MakeDaemon, tmp_path: Path, short_folder: Path
) -> None:
    path = short_folder / "run" / "o.sock"
    config = f"[server]\nsocket = '{path}'\n"
    make_daemon(config=config)
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.toml").write_text(config)
    refused = omlxd(other, "serve", "--port", "0")
    assert refused.returncode == 1
    assert str(path) in refused.stderr
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
        assert client.get("http://localhost/health").status_code == 200
