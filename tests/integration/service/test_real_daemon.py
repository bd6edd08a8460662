"""The whole life of the service with ``omlxd serve`` itself as the job, and its bad days."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from omlxd import instance
from omlxd.doctor.finding import Verdict
from omlxd.errors import ServiceFailed
from omlxd.service import exits
from omlxd.service.exits import Ending
from tests.integration.service.conftest import FREE_PORT, REAL_DAEMON, REPOSITORY, Mac
from tests.integration.service.real_mac import RealMac
from tests.support.daemon import link_models
from tests.support.tiny_models import tiny_model

Until = Callable[[Callable[[], bool]], None]
Said = pytest.CaptureFixture[str]
SERVE = (sys.executable, "-m", "omlxd", "serve")


MakeMac = Callable[[Path], Mac]


@pytest.fixture(
    scope="module", params=["a stand-in", pytest.param("launchd", marks=pytest.mark.mac)]
)
def make_mac(request: pytest.FixtureRequest) -> MakeMac:
    """A Mac whose job is the real daemon; with --mac also the one that the tests run on."""

    def make(folder: Path) -> Mac:
        mac = RealMac() if request.param == "launchd" else Mac(folder, real=True)
        mac.environ = {"HF_HUB_OFFLINE": "1"}
        # A real daemon takes its time to end, and gets what the definition says.
        mac.scenario(exit_scale=1.0)
        mac.config(FREE_PORT)
        return mac

    return make


@pytest.fixture(scope="module")
def service(make_mac: MakeMac, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mac]:
    """An installed service; each test finds it running and leaves it running."""
    mac = make_mac(tmp_path_factory.mktemp("real"))
    link_models(mac.home, tiny_model(tmp_path_factory.mktemp("tiny"), "llama"))
    mac.omlxd("install")
    yield mac
    mac.shut_down()


@pytest.fixture
def bare(make_mac: MakeMac, tmp_path: Path) -> Iterator[Mac]:
    """Nothing is installed."""
    mac = make_mac(tmp_path)
    yield mac
    mac.shut_down()


def health(mac: Mac) -> Any:
    return httpx.get(f"{mac.url}/health", timeout=60).json()


def new_instance(mac: Mac, before: dict[str, Any]) -> bool:
    record = instance.running(mac.state)
    return record is not None and record.instance_id != before["instance_id"]


def serve(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A daemon started by hand that ends by itself."""
    return subprocess.run(
        [*SERVE, "--home", str(home), *words],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def chat(mac: Mac, **fields: Any) -> httpx.Response:
    """One answer; healthy is earlier than ready, so that is waited for."""
    limit = time.monotonic() + 30
    while httpx.get(f"{mac.url}/ready", timeout=60).status_code != 200:
        assert time.monotonic() < limit, "not ready"
        time.sleep(0.05)
    body = {"messages": [{"role": "user", "content": "xyzzy"}], **fields}
    return httpx.post(f"{mac.url}/v1/chat/completions", json=body, timeout=60)


def test_what_answers_is_the_process_that_launchd_started(service: Mac, capsys: Said) -> None:
    record, job = service.record(), service.job()
    assert job is not None
    assert job["pid"] == record["pid"]
    assert health(service)["instance_id"] == record["instance_id"]
    assert service.omlxd("status") == 0
    said = capsys.readouterr().out
    assert f"omlxd runs and is healthy: {service.url}" in said
    assert f"pid         {record['pid']}" in said


def test_the_doctor_sees_the_job_and_its_python(service: Mac) -> None:
    found = {finding.name: finding for finding in service.doctor()}
    for name in ("service python", "daemon", "keys"):
        assert found[name].verdict is Verdict.OK, found[name]
    (job,) = [finding for name, finding in found.items() if name.startswith("launchd (")]
    assert job.verdict is Verdict.OK
    assert job.text.endswith(f"runs (pid {service.record()['pid']})")


def test_installing_again_leaves_the_running_daemon_alone(service: Mac) -> None:
    first = service.record()
    assert service.omlxd("install") == 0
    assert service.record() == first


def test_the_log_is_its_own_file_and_launchd_s_two_stay_empty(service: Mac, capsys: Said) -> None:
    service.omlxd("restart")
    capsys.readouterr()
    assert chat(service, max_tokens=3).status_code == 200
    assert service.omlxd("logs", "-n", "200") == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"listening", "ready"} <= {record["event"] for record in records}
    logs = service.home / "logs"
    assert "xyzzy" not in (logs / "omlxd.log").read_text()
    assert stat.S_IMODE((logs / "omlxd.log").stat().st_mode) == 0o600
    assert (logs / "launchd-stderr.log").read_text() == ""
    assert (logs / "launchd-stdout.log").read_text() == ""


def test_a_restart_gives_another_instance(service: Mac) -> None:
    first = service.record()
    assert service.omlxd("restart") == 0
    second = health(service)["instance_id"]
    assert second == service.record()["instance_id"]
    assert second != first["instance_id"]
    ended = exits.read_last_exit(service.state)
    assert ended is not None
    assert (ended.instance_id, ended.code) == (first["instance_id"], 0)


def test_stopped_it_stays_down_until_it_is_started(service: Mac, capsys: Said) -> None:
    pid = service.record()["pid"]
    assert service.omlxd("stop") == 0
    assert not psutil.pid_exists(pid)
    assert service.omlxd("status") == 3
    assert "omlxd is installed and stopped" in capsys.readouterr().out
    assert service.omlxd("start") == 0
    assert health(service)["instance_id"] == service.record()["instance_id"]


def test_killed_by_kill_nine_it_is_started_again(service: Mac, until: Until, capsys: Said) -> None:
    first = service.record()
    os.kill(first["pid"], signal.SIGKILL)
    until(lambda: new_instance(service, first))
    until(lambda: service.omlxd("status") == 0)
    log = (service.home / "logs" / "omlxd.log").read_text()
    assert "previous_instance_was_killed" in log
    assert first["instance_id"] in log


def test_a_second_daemon_on_its_folder_is_turned_away(service: Mac, capsys: Said) -> None:
    """By hand with 1, supervised with 0; the first one goes on."""
    first = service.record()
    for words, code in (((), 1), (("--supervised",), 0)):
        second = serve(service.home, "--port", "0", *words)
        assert second.returncode == code
        assert f"already running on the data folder {service.state}" in second.stderr
        assert f"pid {first['pid']} at {service.url}" in second.stderr
    assert service.omlxd("status") == 0
    assert service.record() == first


def test_a_mistake_in_the_configuration_ends_it_once_and_is_shown(
    service: Mac, until: Until, capsys: Said
) -> None:
    """Supervised it ends with 0, or it would be started every ten seconds; by hand with 78."""
    service.config("[server]\nprot = 0\n")
    try:
        with pytest.raises(ServiceFailed, match=r"server\.prot"):
            service.omlxd("restart")
        until(lambda: (service.job() or {}).get("pid") is None)
        job = service.job()
        assert job is not None
        assert (job["last_exit"], job["start"]) == (0, False)
        capsys.readouterr()
        assert service.omlxd("status") == 3
        said = capsys.readouterr().out
        assert "omlxd is installed and loaded, and does not run" in said
        assert "code 0: " in said
        assert "server.prot" in said
        assert "server.prot" in (service.home / "logs" / "launchd-stderr.log").read_text()
        by_hand = serve(service.home)
        assert by_hand.returncode == 78
        assert "server.prot" in by_hand.stderr
        service.omlxd("status")
        assert "code 78: " in capsys.readouterr().out
    finally:
        service.config(FREE_PORT)
        assert service.omlxd("start") == 0


def test_when_the_device_is_lost_it_ends_with_75_and_is_started_again(
    service: Mac, until: Until, tmp_path: Path
) -> None:
    """On ``SubmissionsIgnored`` only another process helps. The request gets an error."""
    fault = tmp_path / "fault"
    service.run_python(f'-c "{FAULTY}" "{fault}" "$@"')
    try:
        service.omlxd("restart")
        first = service.record()
        assert chat(service, max_tokens=3).status_code == 200
        fault.write_text("SubmissionsIgnored")
        lost = chat(service, max_tokens=3)
        assert lost.status_code >= 500
        assert lost.json()["error"]["code"] == "engine_died"
        fault.unlink()
        until(lambda: new_instance(service, first))
        ended = exits.read_last_exit(service.state)
        assert ended is not None
        assert (ended.instance_id, ended.code) == (first["instance_id"], 75)
        assert ended.ending is Ending.BROKEN
        until(lambda: service.omlxd("status") == 0)
    finally:
        service.run_python(REAL_DAEMON)


FAULTY = (
    "import os, sys; os.environ['OMLXD_TEST_FAULT'] = sys.argv[1]; "
    "os.execv(sys.executable, [sys.executable, '-m', 'tests.support.faulty_daemon', "
    "*sys.argv[4:]])"
)


def test_one_start_too_many_ends_with_0_and_the_last_reason(service: Mac, capsys: Said) -> None:
    """A native abort at each start cannot call itself permanent: the starts are counted."""
    service.omlxd("stop")
    capsys.readouterr()
    now = time.time()
    starts = [now - 10 * n for n in range(6, 0, -1)]
    (service.state / "starts.json").write_text(json.dumps({"starts": starts}))
    ended = serve(service.home, "--supervised")
    assert ended.returncode == 0
    assert "started 6 times in a row and lived less than 15 minutes" in ended.stderr
    assert service.omlxd("status") == 3
    assert "started 6 times in a row" in capsys.readouterr().out
    assert service.omlxd("start") == 0


def test_a_disk_without_room_for_the_log_stops_nothing(service: Mac, full_disk: Path) -> None:
    """Requests are served; what the log cannot take goes to launchd's stderr file."""
    logs = service.home / "logs"
    service.omlxd("stop")
    logs.rename(logs.with_name("logs-before"))
    logs.symlink_to(full_disk)
    try:
        assert service.omlxd("start") == 0
        assert chat(service, max_tokens=3).status_code == 200
        assert service.omlxd("stop") == 0
        ended = exits.read_last_exit(service.state)
        assert ended is not None
        assert ended.code == 0
        assert (full_disk / "omlxd.log").stat().st_size == 0
    finally:
        service.omlxd("stop")
        logs.unlink()
        logs.with_name("logs-before").rename(logs)
        assert service.omlxd("start") == 0


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own without a free byte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount a file system")
    try:
        with pytest.raises(OSError, match="No space left"):
            (disk / "filler").write_bytes(b"x" * 1024 * 1024)
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_another_omlxd_on_the_port_is_told_apart_and_named(
    service: Mac, bare: Mac, capsys: Said
) -> None:
    """T65. A stale process that answers /health is not the one just started."""
    stale = service.record()
    bare.config(f"[server]\nport = {stale['port']}\n")
    with pytest.raises(ServiceFailed) as failure:
        bare.omlxd("install")
    said = failure.value.message
    assert f"Port {stale['port']} on 127.0.0.1 is taken by another omlxd" in said
    assert f"instance {stale['instance_id']}" in said
    assert "Nothing was installed." in said
    assert bare.job() is None
    assert not bare.plist.exists()
    bare.omlxd("status")
    assert f"code 0: Port {stale['port']}" in capsys.readouterr().out
    by_hand = serve(bare.home)
    assert by_hand.returncode == 1
    assert f"Port {stale['port']}" in by_hand.stderr
    assert health(service)["instance_id"] == stale["instance_id"]


def test_an_installation_with_a_wrong_configuration_is_taken_back(bare: Mac) -> None:
    bare.config("[guard]\ntier = 'bold'\n")
    with pytest.raises(ServiceFailed, match=r"(?s)guard\.tier.*Nothing was installed"):
        bare.omlxd("install")
    assert bare.job() is None
    assert not bare.plist.exists()
    assert (bare.home / "config.toml").read_text() == "[guard]\ntier = 'bold'\n"


def test_uninstalling_keeps_what_is_the_user_s_and_purging_only_the_models(service: Mac) -> None:
    pid = service.record()["pid"]
    assert service.omlxd("uninstall") == 0
    assert not psutil.pid_exists(pid)
    assert not service.plist.exists()
    assert (service.home / "config.toml").read_text() == FREE_PORT
    assert service.state.is_dir()
    assert (service.home / "logs" / "omlxd.log").exists()
    assert service.omlxd("uninstall", "--purge") == 0
    assert [path.name for path in service.home.iterdir()] == ["models"]
