"""The first command of a new user: its API key, and its messages when it cannot go on."""

import errno
import json
import os
import shlex
import sys
from pathlib import Path

import httpx
import pytest
import quickstart
from conversation import CannotGoOn

from omlxd.cli.client import Unreachable
from omlxd.service import daemon_run

URL = "http://127.0.0.1:8484"
KEY = "omlxd_key-of-this-run"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[httpx.Request]:
    """The requests to a server that needs KEY and is still starting at the first request."""
    seen: list[httpx.Request] = []

    def server(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return httpx.Response(401, json={"error": {"message": "asks for an API key"}})
        return httpx.Response(503 if len(seen) == 1 else 200, json={})

    def get(url: str, **options: object) -> httpx.Response:
        with httpx.Client(transport=httpx.MockTransport(server)) as client:
            return client.get(url, headers=options["headers"])  # type: ignore[arg-type]

    monkeypatch.setattr(httpx, "get", get)
    monkeypatch.setattr(quickstart, "HOME", tmp_path)
    monkeypatch.delenv("OMLXD_KEY", raising=False)
    return seen


def leave_key(home: Path, port: int) -> None:
    """Like a daemon of this folder."""
    state = home / "state"
    state.mkdir()
    (state / "local.key").write_text(f"{KEY}\n")
    record = {"instance_id": "x", "pid": 1, "started_at": 1.0, "version": "1"}
    record |= {"host": "127.0.0.1", "port": port}
    (state / "instance.json").write_text(json.dumps(record))


def test_the_key_that_the_daemon_of_the_clone_left_is_sent(
    asked: list[httpx.Request], tmp_path: Path
) -> None:
    leave_key(tmp_path, 8484)
    quickstart.wait_until_ready(URL, None)
    assert len(asked) == 2


def test_a_key_that_was_made_after_the_question_is_sent_with_the_next(
    asked: list[httpx.Request], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port listens long before the server answers."""
    get = httpx.get

    def slow(url: str, **options: object) -> httpx.Response:
        if not asked:
            leave_key(tmp_path, 8484)
        return get(url, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(httpx, "get", slow)
    quickstart.wait_until_ready(URL, None)
    assert [request.headers.get("authorization") for request in asked] == [None, f"Bearer {KEY}"]


def test_the_key_of_the_clone_is_sent_to_no_other_daemon(
    asked: list[httpx.Request], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_key(tmp_path, 8485)
    assert quickstart.headers_for(URL) == {}
    monkeypatch.setenv("OMLXD_KEY", KEY)
    quickstart.wait_until_ready(URL, None)


def test_a_server_that_wants_another_key_is_not_waited_for(asked: list[httpx.Request]) -> None:
    with pytest.raises(CannotGoOn, match="401: asks for an API key"):
        quickstart.wait_until_ready(URL, None)
    assert len(asked) == 1


@pytest.mark.parametrize("keyed", [True, False])
def test_how_to_go_on_names_a_key_where_one_is_asked_for(
    capsys: pytest.CaptureFixture[str], keyed: bool
) -> None:
    quickstart.say_how_to_go_on(URL, "m", keyed=keyed)
    told = capsys.readouterr().out
    assert ("-H 'authorization: Bearer KEY'" in told) is keyed
    assert ("key add NAME" in told) is keyed
    assert ('api_key="none"' in told) is not keyed


def test_the_command_that_makes_a_key_is_right_for_folders_of_any_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quickstart, "HOME", Path("/it's here/.home"))
    monkeypatch.setattr(sys, "executable", "/it's here/python")
    quickstart.say_how_to_go_on(URL, "it's", keyed=True)
    told = capsys.readouterr().out
    command = next(line for line in told.splitlines() if "key add" in line)
    assert shlex.split(command)[:2] == ["OMLXD_HOME=/it's here/.home", "/it's here/python"]
    curl = shlex.split(told[told.index("curl") : told.index("or with")].replace("\\\n", ""))
    assert json.loads(curl[-1])["model"] == "it's"


def test_a_second_daemon_of_the_clone_is_not_started_and_the_log_of_the_first_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On another port than the requested one."""
    monkeypatch.setattr(quickstart, "HOME", tmp_path)
    monkeypatch.setattr(quickstart, "runs_at", lambda url: False)
    lock = daemon_run.take(tmp_path / "state", version="1", interpreter="python", now=0.0)
    with pytest.raises(CannotGoOn, match=f"process {os.getpid()}; wait"):
        quickstart.quickstart(8484, once=True)
    lock.announce("127.0.0.1", 8485)
    with pytest.raises(CannotGoOn, match="scripts/quickstart --port 8485"):
        quickstart.quickstart(8484, once=True)
    lock.release()
    quickstart.refuse_a_second()


def status(**server: object) -> dict[str, object]:
    roots = [{"path": "/models", "state": "ok", "detail": None}]
    return {"models": [], "server": {"skipped": [], "model_roots": roots, **server}}


def test_what_was_found_instead_of_a_model_is_said() -> None:
    problem = {"file": "config.json", "message": "is not JSON"}
    said = quickstart.why_none(
        {
            **status(
                skipped=[{"name": "notes", "reason": "holds no config.json"}],
                model_roots=[{"path": "/far", "state": "denied", "detail": "not yours"}],
            ),
            "models": [
                {"id": "half", "kind": None, "problem": problem},
                {"id": "bge", "kind": "embedding", "problem": None},
            ],
        }
    )
    assert said.splitlines()[1:-1] == [
        "    half: config.json is not JSON",
        "    bge: embedding",
        "    notes: holds no config.json",
        "    /far: denied not yours",
    ]


def test_where_nothing_was_found_the_folders_are_named() -> None:
    assert quickstart.why_none(status()).startswith("Nothing is in /models. Put an MLX model")


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """For main: no arguments, and pytest's signal handlers stay."""
    monkeypatch.setattr(sys, "argv", ["quickstart"])
    monkeypatch.setattr(quickstart, "heed", lambda handler: None)
    monkeypatch.setattr(quickstart, "runs_at", lambda url: False)
    return monkeypatch


def test_a_home_that_is_a_file_is_named_with_what_to_do(
    ended: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / ".home"
    home.touch()
    ended.setattr(quickstart, "HOME", home)
    ended.setattr(quickstart, "MODELS", home / "models")
    assert quickstart.main() == 1
    said = capsys.readouterr().err
    assert str(home) in said
    assert f"move {home} away" in said


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 1, "make room"),
        (OSError(errno.EPIPE, "Broken pipe"), 141, ""),
        (OSError(errno.EIO, "Input/output error"), 141, ""),
        (Unreachable("you may not look into it"), 1, "you may not"),
    ],
)
def test_failures_end_with_a_sentence(
    ended: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
    said: str,
) -> None:
    def fail(port: int, *, once: bool) -> None:
        raise error

    ended.setattr(quickstart, "quickstart", fail)
    assert quickstart.main() == code
    assert said in capsys.readouterr().err
