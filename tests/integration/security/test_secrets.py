"""Prompts, answers and keys stay out of the log, at its most talkative, however a request ends."""

import json
from pathlib import Path

import httpx
import pytest

from tests.integration.conftest import MakeDaemon
from tests.support.daemon import payloads, text_of

SECRET = "xyzzy-the-secret"
JSON = {"content-type": "application/json"}


@pytest.fixture
def key() -> str:
    return f"omlxd_{SECRET}_key"


def test_nothing_that_was_said_is_in_the_log(
    make_daemon: MakeDaemon, smollm2: Path, key: str
) -> None:
    daemon = make_daemon("--log-level", "debug", models=(smollm2,))
    messages = [{"role": "user", "content": f"Repeat after me: {SECRET} tea and biscuits"}]
    chat = {"model": smollm2.name, "messages": messages, "max_tokens": 12, "temperature": 0}
    headers = {"authorization": f"Bearer {key}"}
    with httpx.Client(base_url=daemon.url, headers=headers, timeout=120) as client:
        answer = client.post("/v1/chat/completions", json=chat).raise_for_status().json()
        said = [answer["choices"][0]["message"]["content"]]
        with client.stream("POST", "/v1/chat/completions", json={**chat, "stream": True}) as stream:
            said.append(text_of(list(payloads(stream.iter_lines()))))
        plain = {"model": smollm2.name, "prompt": f"{SECRET} is", "max_tokens": 12}
        done = client.post("/v1/completions", json=plain).raise_for_status().json()
        said.append(done["choices"][0]["text"])
        for path, body in bad_requests(chat):
            answer = client.post(path, content=body, headers=JSON)
            assert 400 <= answer.status_code < 500, answer.text
        client.get(f"/v1/models?api_key={key}")
        client.get("/nowhere", params={"prompt": SECRET})
    assert daemon.stop() == 0
    log = daemon.log.read_text()
    assert daemon.events("http_request"), "the log says nothing at all"
    assert SECRET not in log
    for text in said:
        assert len(text.strip()) > 8, "too short to prove anything"
        assert json.dumps(text.strip())[1:-1] not in log


def bad_requests(chat: dict[str, object]) -> list[tuple[str, str]]:
    """Requests that fail in different places, each with the secret in it."""
    path = "/v1/chat/completions"
    deep = "[" * 400 + f'"{SECRET}"' + "]" * 400
    message = {"role": SECRET, "content": SECRET}
    return [
        (path, f'{{"messages": [{{"role": "user", "content": "{SECRET}'),
        (path, json.dumps({**chat, "messages": SECRET})),
        (path, json.dumps({**chat, "messages": [message]})),
        (path, json.dumps({**chat, "temperature": SECRET})),
        (path, json.dumps({**chat, "n": 3})),
        (path, json.dumps({**chat, "stop": [SECRET] * 50})),
        (path, json.dumps({**chat, "tools": SECRET})),
        (path, json.dumps({**chat, "model": "nobody"})),
        (path, f'{{"messages": {deep}}}'),
        (path, json.dumps({**chat, "messages": [{"role": "user", "content": SECRET * 4000}]})),
        ("/v1/completions", json.dumps({"prompt": [SECRET] * 100})),
        (f"{path}?key={SECRET}", json.dumps({**chat, "model": "nobody"})),
    ]
