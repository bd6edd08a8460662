"""Serves a model from a folder of this clone, asks it one question, and prints the next steps."""

import argparse
import errno
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import httpx
from child_daemon import child, heed, leave, log_tail, say, wait_for
from conversation import CannotGoOn, answer, ask, load

from omlxd.cli.client import Unreachable, key_for
from omlxd.instance import read_record, running

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".home"
LOG = HOME / "logs" / "quickstart.log"
MODELS = HOME / "models"
SMOLLM2 = "SmolLM2-135M-Instruct"
START_LIMIT_S = 60


def make_model() -> None:
    """Make SmolLM2 in the models folder, unless the folder has a model already."""
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
    """The API key: OMLXD_KEY, else the local key of this clone's daemon if that answers there."""
    state = HOME / "state"
    record = read_record(state)
    ours = record is not None and record.url == url
    key = key_for(state, os.environ) if ours else os.environ.get("OMLXD_KEY", "").strip()
    return {"authorization": f"Bearer {key}"} if key else {}


def get(url: str, timeout: float, headers: Mapping[str, str]) -> httpx.Response:
    # Use no proxy for this machine.
    return httpx.get(url, headers=headers, timeout=timeout, trust_env=False)


def runs_at(url: str) -> bool:
    """Whether omlxd answers there. False if nothing listens; raises if it is another program."""
    try:
        health = get(f"{url}/health", 5, {}).json()
    except httpx.ConnectError:
        return False
    except (httpx.HTTPError, ValueError):
        health = None
    if not (isinstance(health, dict) and {"instance_id", "version"} <= health.keys()):
        raise CannotGoOn(f"another program answers at {url}; choose a port with --port N")
    return True


def refuse_a_second() -> None:
    """Only one daemon at a time can use the folder of this clone."""
    found = running(HOME / "state")
    if found is None:
        return
    hint = "wait until it has an address, and ask that one"
    if found.url:
        hint = f"it is at {found.url}: ask it with scripts/quickstart --port {found.port}"
    raise CannotGoOn(
        f"the daemon of this clone runs already, as process {found.pid}; {hint}, "
        f"or stop it with kill {found.pid}"
    )


def daemon(port: int) -> AbstractContextManager[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "omlxd", "serve", "--home", str(HOME)]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    say(f"starting the daemon (its log: {LOG})")
    return child(command, LOG)


def wait_until_ready(url: str, started: "subprocess.Popen[bytes] | None") -> None:
    began = said = time.monotonic()
    while True:
        if started is not None and started.poll() is not None:
            raise CannotGoOn(
                f"the daemon ended with {started.returncode}; its log:\n{log_tail(LOG)}"
            )
        try:
            headers = headers_for(url)
            ready = get(f"{url}/ready", 2, headers)
            # A daemon listens early: it may have made its key after this request was sent.
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


def choose_model(client: httpx.Client) -> str:
    """SmolLM2 if it is served, else the smallest model. Waits for the first scan."""
    for _ in range(50):
        listed: list[dict[str, Any]] = answer(client.get("/v1/models"))["data"]
        models = {entry["id"]: entry["size_bytes"] for entry in listed if entry["type"] == "llm"}
        if models:
            return SMOLLM2 if SMOLLM2 in models else min(models, key=lambda name: models[name])
        time.sleep(0.2)
    raise CannotGoOn(f"no model is served. {why_none(answer(client.get('/status')))}")


def why_none(status: Mapping[str, Any]) -> str:
    """Why there is no model to chat with, and the remedy."""
    server = status["server"]
    found = []
    for model in status["models"]:
        problem = model["problem"] or {}
        reason = f"{problem.get('file') or ''} {problem.get('message') or model['kind']}".strip()
        found.append(f"{model['id']}: {reason}")
    found += [f"{skipped['name']}: {skipped['reason']}" for skipped in server["skipped"]]
    roots = server["model_roots"]
    found += [
        f"{root['path']}: {root['state']} {root['detail'] or ''}".rstrip()
        for root in roots
        if root["state"] not in ("ok", "absent")
    ]
    remedy = f"Put an MLX model folder into {MODELS}, or empty that: then a small model is made."
    if not found:
        return f"Nothing is in {', '.join(root['path'] for root in roots)}. {remedy}"
    return "\n    ".join(["What was found:", *found]) + f"\n{remedy}"


def say_how_to_go_on(url: str, model: str, *, keyed: bool) -> None:
    key, header = "none", ""
    if keyed:
        key, header = "KEY", " -H 'authorization: Bearer KEY'"
        home, python = shlex.quote(str(HOME)), shlex.quote(sys.executable)
        command = f"OMLXD_HOME={home} {python} -m omlxd key add NAME"
        print(f"\nThe server asks for an API key. This makes one:\n\n    {command}")
    body = {"model": model, "messages": [{"role": "user", "content": "Hello!"}]}
    print(f"""
The server speaks OpenAI's protocol at {url}/v1. From another terminal:

    curl {url}/v1/chat/completions{header} -H 'content-type: application/json' -d \\
      {shlex.quote(json.dumps(body))}

or with OpenAI's Python SDK (pip install openai):

    from openai import OpenAI
    client = OpenAI(base_url="{url}/v1", api_key="{key}")
    messages = [{{"role": "user", "content": "Hello!"}}]
    print(client.chat.completions.create(model={json.dumps(model)}, messages=messages))

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
    refuse_a_second()
    make_model()
    with daemon(port) as process:
        wait_until_ready(url, process)
        talk(url)
        print(f"More models: put MLX model folders into {MODELS}\n")
        if once:
            return
        say("the daemon runs until you press Ctrl-C")
        with suppress(KeyboardInterrupt):
            code = wait_for(process)
            raise CannotGoOn(f"the daemon ended with {code}; its log:\n{log_tail(LOG)}")


def port(text: str) -> int:
    number = int(text)
    if not 0 < number < 65536:
        raise ValueError(text)
    return number


def why(error: OSError) -> str:
    """The path and the remedy."""
    remedy = f"see that it can be written, or move {HOME} away and run this again"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "make room on its disk"
    return f"{error.filename or 'the output'} cannot be used: {error.strerror}; {remedy}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/quickstart", description=__doc__)
    parser.add_argument("--once", action="store_true", help="stop the daemon after the answer")
    parser.add_argument("--port", type=port, default=8484, metavar="N", help="(default 8484)")
    args = parser.parse_args()
    try:
        heed(leave)
        quickstart(args.port, once=args.once)
    except (CannotGoOn, Unreachable, httpx.HTTPError) as error:
        print(f"error: {error or repr(error)}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.filename is None and error.errno in (errno.EPIPE, errno.EIO):
            return 141  # the reader of our output has gone
        print(f"error: {why(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        drop_what_nobody_reads()
    return 0


def drop_what_nobody_reads() -> None:
    """Drop unread output. Otherwise the interpreter complains at exit and changes the exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
