"""The first command of a newcomer, where an API key exists already."""

import json
from pathlib import Path

import httpx
import pytest
import quickstart

URL = "http://127.0.0.1:8484"
KEY = "omlxd_key-of-this-run"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[httpx.Request]:
    """What was asked of a server that wants KEY, and starts for one question."""
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
    """As a daemon of this folder does."""
    state = home / "state"
    state.mkdir()
    (state / "local.key").write_text(f"{KEY}\n")
    (state / "instance.json").write_text(json.dumps({"host": "127.0.0.1", "port": port}))


def test_the_key_that_the_daemon_of_the_clone_left_is_sent(
    asked: list[httpx.Request], tmp_path: Path
) -> None:
    leave_key(tmp_path, 8484)
    quickstart.wait_until_ready(URL, None)
    assert len(asked) == 2


def test_a_key_that_was_made_after_the_question_is_sent_with_the_next(
    asked: list[httpx.Request], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port listens long before anything answers."""
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
    with pytest.raises(quickstart.CannotGoOn, match="401: asks for an API key"):
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
