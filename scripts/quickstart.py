"""Serves a model from a folder of this clone, asks it one question and says how to go on."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import httpx

from omlxd.cli.client import address_of, key_for, read_instance

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".home"
LOG = HOME / "logs" / "quickstart.log"
MODELS = HOME / "models"
SMOLLM2 = "SmolLM2-135M-Instruct"
QUESTION = "What is the capital of France, and what is it known for?"
ANSWER_TOKENS = 120
START_LIMIT_S = 60
STOP_LIMIT_S = 40  # more than the daemon's own limits for draining and stopping together


class CannotGoOn(Exception):
    """The message says why and what to do."""


def say(text: str) -> None:
    print(f"==> {text}", flush=True)


def make_model() -> None:
    """SmolLM2 in the models folder, unless that holds something already."""
    MODELS.mkdir(parents=True, exist_ok=True)
    if any(not entry.name.startswith(".") for entry in MODELS.iterdir()):
        return
    say(f"making a small real model in {MODELS}")
    maker = [sys.executable, str(ROOT / "scripts" / "smollm2.py"), str(MODELS / SMOLLM2)]
    if os.environ.get("OMLXD_MLX") == "cuda":
        maker += ["--dtype", "bfloat16"]
    if subprocess.run(maker, check=False).returncode != 0:
        raise CannotGoOn("the model could not be made; the reason is above")


def headers_for(url: str) -> dict[str, str]:
    """The API key: OMLXD_KEY, else what the daemon of this clone left, if that is the one there."""
    state = HOME / "state"
    ours = address_of(read_instance(state) or {}) == url
    key = key_for(state, os.environ) if ours else os.environ.get("OMLXD_KEY", "").strip()
    return {"authorization": f"Bearer {key}"} if key else {}


def get(url: str, timeout: float, headers: Mapping[str, str]) -> httpx.Response:
    # No proxy is meant for this machine.
    return httpx.get(url, headers=headers, timeout=timeout, trust_env=False)


def runs_at(url: str) -> bool:
    """Whether omlxd answers there: False where nothing listens, an error for another program."""
    try:
        health = get(f"{url}/health", 5, {}).json()
    except httpx.ConnectError:
        return False
    except (httpx.HTTPError, ValueError):
        health = None
    if not (isinstance(health, dict) and {"instance_id", "version"} <= health.keys()):
        raise CannotGoOn(f"another program answers at {url}; choose a port with --port N")
    return True


@contextmanager
def daemon(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """The daemon as a child, stopped on the way out however that comes."""
    LOG.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "omlxd", "serve", "--home", str(HOME)]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    say(f"starting the daemon (its log: {LOG})")
    with LOG.open("wb") as log:
        # A session of its own, so that Ctrl-C reaches only this process and the stop is one.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    say("stopping the daemon")
    process.terminate()
    try:
        process.wait(STOP_LIMIT_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()


def wait_until_ready(url: str, child: "subprocess.Popen[bytes] | None") -> None:
    began = said = time.monotonic()
    while True:
        if child is not None and child.poll() is not None:
            raise CannotGoOn(f"the daemon ended with {child.returncode}; its log:\n{log_tail()}")
        try:
            headers = headers_for(url)
            ready = get(f"{url}/ready", 2, headers)
            # A daemon that listens early may have made its key after the question was sent.
            if ready.status_code != 503 and headers == headers_for(url):
                answer(ready)
                return
        except httpx.HTTPError:
            pass  # not yet
        now = time.monotonic()
        if now - began > START_LIMIT_S:
            raise CannotGoOn(f"{url} was not ready in {START_LIMIT_S} s; see {LOG}")
        if now - said >= 1:
            said = now
            say(f"waiting for {url}/ready, {now - began:.0f} s")
        time.sleep(0.05)


def log_tail(lines: int = 20) -> str:
    return "\n".join(LOG.read_text(errors="replace").splitlines()[-lines:])


def choose_model(client: httpx.Client) -> str:
    """SmolLM2 where it is served, else the smallest; waits for the first look at the folders."""
    for _ in range(50):
        listed: list[dict[str, Any]] = answer(client.get("/v1/models"))["data"]
        models = {entry["id"]: entry["size_bytes"] for entry in listed if entry["type"] == "llm"}
        if models:
            return SMOLLM2 if SMOLLM2 in models else min(models, key=lambda name: models[name])
        time.sleep(0.2)
    raise CannotGoOn(f"no model is served; {client.base_url}/status says why. Is {MODELS} empty?")


def load(client: httpx.Client, model: str) -> None:
    """Has the model loaded, and says how far it is once a second."""
    say(f"loading {model}")
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(client.post, f"/v1/models/{model}/load", json={}, timeout=600)
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


def answer(response: httpx.Response) -> Any:
    """The JSON of a good answer; the server's own message where it is an error."""
    if response.is_success:
        return response.json()
    response.read()
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = response.text[:500]
    raise CannotGoOn(f"{response.url} answered {response.status_code}: {message}")


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


def say_how_to_go_on(url: str, model: str, *, keyed: bool) -> None:
    key, header = "none", ""
    if keyed:
        key, header = "KEY", " -H 'authorization: Bearer KEY'"
        command = f"OMLXD_HOME='{HOME}' {sys.executable} -m omlxd key add NAME"
        print(f"\nThe server asks for an API key. This makes one:\n\n    {command}")
    print(f"""
The server speaks OpenAI's protocol at {url}/v1. From another terminal:

    curl {url}/v1/chat/completions{header} -H 'content-type: application/json' -d \\
      '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'

or with OpenAI's Python SDK (pip install openai):

    from openai import OpenAI
    client = OpenAI(base_url="{url}/v1", api_key="{key}")
    messages = [{{"role": "user", "content": "Hello!"}}]
    print(client.chat.completions.create(model="{model}", messages=messages))

What it is doing, and where it looks for models: {url}/status""")


def talk(url: str) -> None:
    with httpx.Client(
        base_url=url, headers=headers_for(url), timeout=30, trust_env=False
    ) as client:
        model = choose_model(client)
        load(client, model)
        ask(client, model)
    say_how_to_go_on(url, model, keyed=get(f"{url}/ready", 5, {}).status_code == 401)


def quickstart(port: int, *, once: bool) -> None:
    url = f"http://127.0.0.1:{port}"
    if runs_at(url):
        say(f"a daemon of this project runs at {url} already; asking that one")
        wait_until_ready(url, None)
        talk(url)
        return
    make_model()
    with daemon(port) as process:
        wait_until_ready(url, process)
        talk(url)
        print(f"More models: put MLX model folders into {MODELS}\n")
        if once:
            return
        say("the daemon runs until you press Ctrl-C")
        with suppress(KeyboardInterrupt):
            process.wait()
            raise CannotGoOn(f"the daemon ended with {process.returncode}; its log:\n{log_tail()}")


def port(text: str) -> int:
    number = int(text)
    if not 0 < number < 65536:
        raise ValueError(text)
    return number


def leave(number: int, frame: FrameType | None) -> None:
    """Turns a signal into an exception, so that the daemon is stopped on the way out."""
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/quickstart", description=__doc__)
    parser.add_argument("--once", action="store_true", help="stop the daemon after the answer")
    parser.add_argument("--port", type=port, default=8484, metavar="N", help="(default 8484)")
    args = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    try:
        quickstart(args.port, once=args.once)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read the output has left
        return 141
    except (CannotGoOn, httpx.HTTPError) as error:
        print(f"error: {error or repr(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
