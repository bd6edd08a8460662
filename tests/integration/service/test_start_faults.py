"""What goes wrong before the daemon is one: said, recorded, counted, and never started for ever."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from omlxd.daemon.listen import listen
from omlxd.doctor.daemon import check_port
from omlxd.doctor.finding import Verdict
from omlxd.errors import PortTaken
from omlxd.service.exits import MOST_STARTS
from tests.integration.service.conftest import REPOSITORY
from tests.support.signals import default_signals

START = "import os, sys; {fault}; from omlxd.__main__ import main; sys.exit(main())"
KILL_SELF = "os.kill(os.getpid(), {number})"


def serve(
    home: Path, *words: str, fault: str = "pass", supervised: bool = True
) -> subprocess.CompletedProcess[str]:
    """``omlxd serve`` in a Python in which ``fault`` is done first."""
    arguments = ["--home", str(home), "--port", "0", *words]
    if supervised:
        arguments.append("--supervised")
    return subprocess.run(
        [sys.executable, "-c", START.format(fault=fault), "serve", *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=default_signals,
    )


def recorded(home: Path) -> Any:
    return json.loads((home / "state" / "last_exit.json").read_text())


@pytest.mark.parametrize("supervised", [True, False])
@pytest.mark.parametrize(
    ("text", "host"),
    [
        pytest.param("", "fe80::1", id="an address of no interface"),
        pytest.param("", "203.0.113.1", id="somebody else's address"),
        pytest.param("", "not a host", id="no address"),
        pytest.param("[server]\nmax_connections = " + "9" * 5000, "127.0.0.1", id="long number"),
        pytest.param("x = " + "[" * 20_000 + "]" * 20_000, "127.0.0.1", id="deep nesting"),
    ],
)
def test_a_mistake_that_stays_is_one_line_and_recorded(
    tmp_path: Path, text: str, host: str, supervised: bool
) -> None:
    (tmp_path / "config.toml").write_text(text)
    ended = serve(tmp_path, "--host", host, supervised=supervised)
    assert ended.returncode == (0 if supervised else 78), ended.stderr
    assert "Traceback" not in ended.stderr
    assert recorded(tmp_path)["ending"] == "config"


@pytest.mark.parametrize("supervised", [True, False])
def test_a_home_of_nobody_ends_it_for_good(tmp_path: Path, supervised: bool) -> None:
    ended = serve(tmp_path, "--home", "~no_such_user/x", supervised=supervised)
    assert ended.returncode == (0 if supervised else 78)
    assert ended.stderr.startswith("omlxd: ~no_such_user/x: ")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("supervised", [True, False])
def test_it_starts_without_any_of_the_standard_streams(tmp_path: Path, supervised: bool) -> None:
    fault = (
        "[os.close(n) for n in (0, 1, 2)]; sys.stdin = sys.stdout = sys.stderr = None; "
        "import omlxd.daemon.main as m; m.serve = lambda *_: sys.exit(5 if sys.stderr "
        "is None else not all(map(os.get_inheritable, (0, 1, 2))) or os.write(1, b'x') - 1)"
    )
    assert serve(tmp_path, fault=fault, supervised=supervised).returncode == 0
    ended = serve(tmp_path, "--port", "none", fault=fault, supervised=supervised)
    assert ended.returncode == (0 if supervised else 78)
    assert recorded(tmp_path)["ending"] == "config"


@pytest.mark.parametrize("module", ["omlxd.config.load", "omlxd.daemon.listen", "omlxd.engine"])
def test_a_broken_installation_is_counted_like_any_fault(tmp_path: Path, module: str) -> None:
    fault = f"sys.modules[{module!r}] = None"
    codes = [serve(tmp_path, fault=fault).returncode for _ in range(MOST_STARTS + 1)]
    assert codes == [75] * MOST_STARTS + [0]
    said = recorded(tmp_path)
    assert said["ending"] == "looping"
    assert module in said["message"]


def test_an_installation_that_cannot_even_count_ends_it_for_good(tmp_path: Path) -> None:
    ended = serve(tmp_path, fault="sys.modules['omlxd.service.daemon_run'] = None")
    assert ended.returncode == 0
    assert "ModuleNotFoundError" in ended.stderr


def test_a_fault_that_cannot_be_counted_is_not_tried_again(tmp_path: Path) -> None:
    fault = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); "
        "sys.modules['omlxd.engine'] = None"
    )
    ended = serve(tmp_path, fault=fault)
    assert ended.returncode == 0, ended.stderr
    assert "cannot be written" in ended.stderr


@pytest.mark.parametrize(
    ("place", "number", "supervised"),
    [
        ("omlxd.cli.main.run", signal.SIGTERM, False),
        ("omlxd.cli.main.run", signal.SIGINT, False),
        ("omlxd.config.load.load", signal.SIGTERM, True),
        ("omlxd.config.load.load", signal.SIGHUP, False),
        ("omlxd.daemon.listeners.open_listeners", signal.SIGTERM, False),
        ("omlxd.daemon.main.serve", signal.SIGINT, True),
    ],
)
def test_a_stop_early_in_the_start_is_a_clean_one(
    tmp_path: Path, place: str, number: signal.Signals, supervised: bool
) -> None:
    """Else launchd would start again what somebody has just stopped."""
    module, _, function = place.rpartition(".")
    kill = f"lambda *_, **__: {KILL_SELF.format(number=int(number))}"
    fault = f"import {module} as m; m.{function} = {kill}"
    ended = serve(tmp_path, fault=fault, supervised=supervised)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    state = tmp_path / "state"
    assert not (state / "instance.json").exists()
    assert not (state / "local.key").exists()
    if place.endswith(("open_listeners", "main.serve")):
        assert recorded(tmp_path)["ending"] == "stopped"
        assert not (state / "starts.json").exists()


SWALLOWED = """
import os, signal, omlxd.daemon.main, omlxd.daemon.listeners
def kill():
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(1000): pass
class Falls:
    __del__ = lambda self: kill()
remove = omlxd.daemon.listeners.Listeners.remove_files
serve = omlxd.daemon.main.serve
omlxd.daemon.main.serve = lambda *given: (Falls(), serve)[1](*given)
omlxd.daemon.listeners.Listeners.remove_files = lambda self: (kill(), remove(self))
"""


def test_a_stop_that_falls_where_errors_are_ignored_is_not_lost_and_its_repetition_no_harm(
    tmp_path: Path,
) -> None:
    """Python ignores what is raised while an object is being freed."""
    ended = serve(tmp_path, fault=f"exec({SWALLOWED!r})", supervised=False)
    assert "Exception ignored" in ended.stderr
    assert ended.returncode == 0, ended.stderr
    assert recorded(tmp_path)["ending"] == "stopped"
    assert not (tmp_path / "state" / "local.key").exists()


class Obliging(socket.socket):
    """As on macOS: with SO_REUSEADDR a port can be bound that another address of it has."""

    def bind(self, address: Any) -> None:
        super().bind((address[0], 0))


@pytest.mark.parametrize(("held", "wanted"), [("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "0.0.0.0")])
def test_t65_a_port_that_somebody_answers_on_is_taken_even_where_it_could_be_bound(
    monkeypatch: pytest.MonkeyPatch, held: str, wanted: str
) -> None:
    with socket.create_server((held, 0)) as holder:
        port = holder.getsockname()[1]
        monkeypatch.setattr(socket, "socket", Obliging)
        with pytest.raises(PortTaken, match=str(port)):
            listen(wanted, port)
        found = check_port(wanted, port, None, serviced=False, holder=lambda *_: "somebody")
        assert found.verdict is Verdict.FAIL
        assert "held by somebody" in found.text
