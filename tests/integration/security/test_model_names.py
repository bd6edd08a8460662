"""Odd model ids: refused on every route that takes one, without a file opened for them."""

import json
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from tests.support.daemon import DaemonProcess, link_or_copy
from tests.support.raw_http import exchange, request

ODD = [
    "..",
    "../..",
    "../../../../etc/passwd",
    "/etc/passwd",
    "/",
    "//",
    "a/../../b",
    "llama/../llama",
    "./llama",
    "llama/.",
    "~",
    "~root",
    "~/models",
    "$HOME",
    "C:\\Windows",
    "..\\..\\x",
    "\\\\host\\share",
    "file:///etc/passwd",
    "http://127.0.0.1:1/x",
    "a\0b",
    "llama\0",
    "\r\nX: y",
    " llama ",
    "llama%2f..",
    "%2e%2e%2f",
    "..%c0%af",
    "ＬＬＡＭＡ",
    "․․/․․",
    "l\u200blama",
    "\u202eamall",
    "😀" * 50,
    "a" * 5000,
    "a/" * 500 + "b",
    "{{7*7}}",
    "%s%n",
    "'; DROP TABLE models; --",
    "<script>",
    "-rf",
    "config.json",
    "llama/config.json",
    ".",
    "",
]
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


@pytest.fixture(scope="module")
def trap(daemon: DaemonProcess, tiny: Path) -> Path:
    """A servable model beside the models folder, and in the daemon's working folder."""
    beside = daemon.home / "trap"
    beside.mkdir()
    for file in tiny.iterdir():
        if file.is_file():
            link_or_copy(file, beside / file.name)
    return beside


def assert_refused(answer: httpx.Response) -> None:
    assert answer.status_code in (400, 404), answer.text[:300]
    error = answer.json()["error"]
    assert error["message"]
    assert "Traceback" not in answer.text
    assert "root:" not in answer.text


@pytest.mark.parametrize("name", ODD, ids=lambda name: ascii(name)[:30])
def test_an_odd_model_in_a_body_is_refused(daemon: DaemonProcess, name: str) -> None:
    with daemon.client(20) as client:
        for path, body in (
            ("/v1/chat/completions", CHAT),
            ("/v1/completions", {"prompt": "hi", "max_tokens": 1}),
        ):
            answer = client.post(path, json={**body, "model": name})
            if name.strip() == "":
                assert answer.status_code < 500
            else:
                assert_refused(answer)


@pytest.mark.parametrize("name", ODD, ids=lambda name: ascii(name)[:30])
def test_an_odd_model_in_a_path_is_refused(daemon: DaemonProcess, name: str) -> None:
    host = ("Host", f"127.0.0.1:{daemon.port}")
    kind = ("Content-Type", "application/json")
    for written in {quote(name), quote(name, safe=""), quote(quote(name, safe=""), safe="")}:
        for method, target in model_targets(written):
            raw = request(method, target, [host, kind, ("Content-Length", "2")], b"{}")
            answer = exchange(("127.0.0.1", daemon.port), raw)
            if not name and target.startswith("/v1/models/") and method == "GET":
                continue
            assert answer.status in (400, 404, 405), (method, target, answer)
            assert answer.error["message"]


def model_targets(name: str) -> list[tuple[str, str]]:
    return [
        ("GET", f"/v1/models/{name}"),
        ("POST", f"/v1/models/{name}/load"),
        ("POST", f"/v1/models/{name}/unload"),
        ("PATCH", f"/v1/models/{name}"),
    ]


def test_a_path_to_a_real_model_is_no_name_for_it(daemon: DaemonProcess, trap: Path) -> None:
    """A runtime that takes any existing folder for a model would serve this one."""
    names = [str(trap), "trap", "./trap", "../trap", f"~/{trap.name}", f"file://{trap}"]
    with daemon.client(30) as client:
        for name in names:
            assert_refused(client.post("/v1/chat/completions", json={**CHAT, "model": name}))
            path = f"/v1/models/{quote(name, safe='')}/load"
            assert_refused(
                client.post(path, content="{}", headers={"content-type": "application/json"})
            )
    assert trap.name not in [m["id"] for m in daemon.status()["models"]]


def test_half_a_surrogate_pair_is_refused(daemon: DaemonProcess) -> None:
    body = json.dumps({**CHAT, "model": "\ud800"}).encode()
    answer = httpx.post(
        f"{daemon.url}/v1/chat/completions",
        content=body,
        headers={"content-type": "application/json"},
        timeout=60,
    )
    assert_refused(answer)


def test_other_text_fields_reach_no_file_either(daemon: DaemonProcess, tiny: Path) -> None:
    """Fields by which other servers let a client choose files, templates or code."""
    for field, value in {
        "chat_template": "{{ ''.__class__ }}",
        "adapter": "../../x",
        "adapters": "../../x",
        "draft_model": "/etc/passwd",
        "cache_file": "/etc/passwd",
        "grammar_file": "/etc/passwd",
    }.items():
        answer = httpx.post(
            f"{daemon.url}/v1/chat/completions",
            json={**CHAT, "model": tiny.name, field: value},
            timeout=60,
        )
        assert answer.status_code in (200, 400), answer.text
        assert "root:" not in answer.text
