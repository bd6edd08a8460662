"""Asks one question of a server that speaks OpenAI's protocol, and prints the progress."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from threading import Thread
from typing import Any

import httpx
from child_daemon import say

QUESTION = "What is the capital of France, and what is it known for?"
ANSWER_TOKENS = 120


class CannotGoOn(Exception):
    """The message has the reason and the remedy."""


def answer(response: httpx.Response) -> Any:
    """The JSON of a successful answer. An error raises CannotGoOn with the server's message."""
    if response.is_success:
        return response.json()
    response.read()
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = response.text[:500]
    raise CannotGoOn(f"{response.url} answered {response.status_code}: {message}")


def load(client: httpx.Client, model: str) -> None:
    """Load the model, and print the progress once a second."""
    say(f"loading {model}")
    loading: Future[httpx.Response] = Future()

    def post() -> None:
        try:
            loading.set_result(client.post(f"/v1/models/{model}/load", json={}, timeout=600))
        except Exception as error:  # noqa: BLE001 - raised when the result is read
            loading.set_exception(error)

    # A daemon thread: the exit does not wait for it, as it would for an executor's threads.
    Thread(target=post, daemon=True).start()
    while not wait([loading], timeout=1).done:
        entry = status_of(client, model)
        done = entry.get("progress")
        share = None if done is None else f"{done:.0%}"
        told = filter(None, (entry.get("state"), share, entry.get("detail")))
        print("   ", *told, flush=True)
    answer(loading.result())


def status_of(client: httpx.Client, model: str) -> dict[str, Any]:
    models: list[dict[str, Any]] = answer(client.get("/status"))["models"]
    return next((entry for entry in models if entry["id"] == model), {})


def ask(client: httpx.Client, model: str) -> None:
    say(f"asking {model}: {QUESTION}")
    body = {
        "model": model,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began = time.monotonic()
    first = None
    usage: dict[str, Any] = {}
    print()
    with client.stream("POST", "/v1/chat/completions", json=body, timeout=600) as response:
        if not response.is_success:
            answer(response)
        for chunk in chunks(response.iter_lines()):
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                text = choice["delta"].get("content") or ""
                first = first or (time.monotonic() if text else None)
                print(text, end="", flush=True)
    print("\n")
    ended = time.monotonic()
    if first and usage.get("completion_tokens", 0) > 1:
        rate = (usage["completion_tokens"] - 1) / max(ended - first, 1e-6)
        say(
            f"{usage['completion_tokens']} tokens, the first after {first - began:.2f} s, "
            f"then {rate:.0f} a second"
        )


def chunks(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("data: ") and line != "data: [DONE]":
            chunk = json.loads(line.removeprefix("data: "))
            if "error" in chunk:
                raise CannotGoOn(f"the answer broke off: {chunk['error'].get('message')}")
            yield chunk
