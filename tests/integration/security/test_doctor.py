"""``omlxd doctor`` as a command: what it says, in which form, and its exit code."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.integration.conftest import MakeDaemon
from tests.support.daemon import link_models


def doctor(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("OMLXD")}
    return subprocess.run(
        [sys.executable, "-m", "omlxd", "doctor", "--home", str(home), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**environ, "HF_HOME": str(home / "hub")},
    )


def findings(home: Path) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    done = doctor(home, "--json")
    assert done.stderr == ""
    answer = json.loads(done.stdout)
    assert answer["ok"] is (done.returncode == 0)
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in answer["findings"]:
        found.setdefault(finding["name"], []).append(finding)
    return done.returncode, found


def test_with_a_running_daemon_all_is_well(make_daemon: MakeDaemon, tiny: Path) -> None:
    daemon = make_daemon(models=(tiny,))
    added = subprocess.run(
        [sys.executable, "-m", "omlxd", "key", "add", "app", "--home", str(daemon.home)],
        capture_output=True,
        check=True,
        timeout=30,
    )
    code, found = findings(daemon.home)
    assert code == 0, found
    for name in ("config", "python", "mlx", "memory", "cache", "keys", "daemon", "guard"):
        assert found[name], name
    assert found["mlx"][0]["verdict"] == "ok"
    assert str(daemon.port) in found["port"][0]["text"]
    assert daemon.url in found["daemon"][0]["text"]
    assert "memory pressure is ok" in found["guard"][0]["text"]
    assert any("1 models" in finding["text"] for finding in found["models"])
    assert added.stdout.decode().strip() not in json.dumps(found)


def test_each_finding_is_one_line_that_begins_with_its_verdict(tmp_path: Path) -> None:
    done = doctor(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) > 8
    assert all(line.split()[0] in ("ok", "warn", "fail") for line in lines)
    assert any(line.startswith("warn  daemon") and "  -> omlxd" in line for line in lines)


def test_what_does_not_work_fails_with_the_remedy(tmp_path: Path, tiny: Path) -> None:
    link_models(tmp_path, tiny)
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        port = foreign.getsockname()[1]
        (tmp_path / "config.toml").write_text(
            f"[server]\nport = {port}\n[models]\ndirs = ['{tmp_path}/gone']\n"
        )
        (tmp_path / "state").mkdir(mode=0o700)
        (tmp_path / "state" / "keys.json").write_text("{")
        (tmp_path / "state" / "keys.json").chmod(0o600)
        code, found = findings(tmp_path)
    assert code == 1
    assert found["port"][0]["verdict"] == "fail"
    assert found["keys"][0]["verdict"] == "fail"
    assert found["models"][0]["verdict"] == "warn"
    assert found["daemon"][0]["remedy"]


def test_every_mistake_of_the_configuration_is_said_and_the_rest_is_still_checked(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.toml").write_text("[server]\nport = 'x'\n[guard]\ntier = 'bold'\n")
    code, found = findings(tmp_path)
    assert code == 1
    assert [finding["verdict"] for finding in found["config"]] == ["fail", "fail"]
    assert found["memory"]
    assert found["mlx"]
