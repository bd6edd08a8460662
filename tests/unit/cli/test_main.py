"""Commands against a daemon whose answers have another form than expected."""

from typing import Any

import pytest

from omlxd import __version__
from omlxd.cli.client import Daemon, Unreachable
from omlxd.cli.main import run

URL = ("--url", "http://mac:1")
OLD_MODEL = {"id": "m", "state": "ready"}
ANSWERS: dict[str, Any] = {
    "/status": {"server": {"version": "0.0.1"}, "models": [OLD_MODEL], "requests": []},
    "/v1/memory-guard": {"policy": []},
}


def answering(monkeypatch: pytest.MonkeyPatch, version: object) -> None:
    def ask(daemon: Daemon, method: str, path: str, *_: object) -> Any:
        if path == "/health":
            if version is None:
                raise Unreachable("gone")
            return {"version": version}
        return ANSWERS.get(path, {})

    monkeypatch.setattr(Daemon, "_ask", ask)


COMMANDS = (
    ("status",),
    ("models", "list"),
    ("models", "fit", "m"),
    ("models", "load", "m"),
    ("models", "unload", "m"),
    ("guard",),
)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_daemon_of_another_version_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    answering(monkeypatch, "0.0.1")
    assert run([*words, *URL]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "http://mac:1 (version 0.0.1)" in line
    assert __version__ in line


@pytest.mark.parametrize("version", [__version__, None, 7])
def test_a_fault_of_ours_stays_one(monkeypatch: pytest.MonkeyPatch, version: object) -> None:
    answering(monkeypatch, version)
    with pytest.raises(KeyError):
        run(["status", *URL])
