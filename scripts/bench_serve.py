"""Serving throughput and latency against the bare batch loop and against mlx_lm.server.

One run: the bare ``BatchGenerator`` loop in this process, the daemon and mlx_lm.server as
processes over HTTP with SSE, on the same prompts and the same model, in paired rounds. Prints the
medians of the ratios of the pairs; the first round is warm-up. Needs the real model
(scripts/quickstart makes it) and nothing else running.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support.daemon import DaemonProcess, link_models
from tests.support.real_model import real_model

TOPICS = (
    "a lighthouse keeper",
    "a lost map",
    "the first snow",
    "a clock maker",
    "two rivers",
    "an old train",
    "a garden at night",
    "the deep sea",
)
HEALTH_EVERY = 0.02
BARE = "bare loop"
RATE, HEALTH_P99, IDLE = 0.95, 0.020, 0.01
"""Targets: share of the bare loop's tokens per second; seconds; share of one core."""

Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Round:
    """One round: tokens per second of all streams together, and each stream's TTFT in seconds."""

    rate: float
    ttft: list[float]
    tokens: int


Run = Callable[[list[Messages], int], Round]


def conversations(number: int, streams: int) -> list[Messages]:
    """The prompts of round ``number``: the same for every contender, and new to each of them.

    They differ from the first words on, so no contender has a prefix in its prompt cache.
    """
    return [
        [
            {
                "role": "system",
                "content": f"Part {streams}, book {number}, chapter {i}: you tell stories.",
            },
            {"role": "user", "content": f"Write a long story about {topic}, with many details."},
        ]
        for i, topic in enumerate(TOPICS[:streams])
    ]


class BareLoop:
    """mlx-lm's batch generator alone in this process."""

    def __init__(self, model: Path) -> None:
        from mlx_lm import load

        self._model, self._tokenizer = load(str(model))[:2]

    def round(self, prompts: list[Messages], max_tokens: int) -> Round:
        from mlx_lm.generate import BatchGenerator

        rendered = [
            self._tokenizer.apply_chat_template(p, add_generation_prompt=True) for p in prompts
        ]
        eos = [[token] for token in self._tokenizer.eos_token_ids]
        began = time.perf_counter()
        generator = BatchGenerator(self._model, stop_tokens=eos, prefill_batch_size=8)
        left = set(generator.insert(rendered, [max_tokens] * len(rendered)))
        seen: dict[int, float] = {}
        tokens = 0
        while left:
            for response in generator.next()[1]:
                tokens += 1
                seen.setdefault(response.uid, time.perf_counter() - began)
                if response.finish_reason is not None:
                    left.discard(response.uid)
        took = time.perf_counter() - began
        generator.close()
        return Round(tokens / took, list(seen.values()), tokens)


class OverHttp:
    """A server, called by chat completions with SSE; one thread per stream."""

    def __init__(self, url: str, model: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=300)
        self._model = model

    def _stream(
        self, prompt: Messages, max_tokens: int, began: float, out: list[tuple[float, int]]
    ) -> None:
        body = {
            "model": self._model,
            "messages": prompt,
            "temperature": 0,
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        first, tokens = None, 0
        with self._client.stream("POST", "/v1/chat/completions", json=body) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line[6:])
                if chunk.get("usage"):
                    tokens = chunk["usage"]["completion_tokens"]
                if first is None and any(
                    c["delta"].get("content") for c in chunk.get("choices", ())
                ):
                    first = time.perf_counter() - began
        out.append((first if first is not None else float("nan"), tokens))

    def round(self, prompts: list[Messages], max_tokens: int) -> Round:
        out: list[tuple[float, int]] = []
        began = time.perf_counter()
        threads = [
            threading.Thread(target=self._stream, args=(prompt, max_tokens, began, out))
            for prompt in prompts
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.perf_counter() - began
        if len(out) != len(prompts):
            raise RuntimeError(f"{len(prompts) - len(out)} of {len(prompts)} streams failed")
        tokens = sum(n for _, n in out)
        return Round(tokens / took, [first for first, _ in out], tokens)


def start_mlx_lm_server(model: Path, port: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "mlx_lm", "server", "--model", str(model), "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    for _ in range(300):
        try:
            httpx.get(f"http://127.0.0.1:{port}/health", timeout=1)
        except httpx.HTTPError:
            time.sleep(0.1)
        else:
            return process
    process.kill()
    raise RuntimeError("mlx_lm.server did not start")


def probe_health(url: str, stop: threading.Event, out: list[float]) -> None:
    with httpx.Client(base_url=url, timeout=10) as client:
        while not stop.wait(HEALTH_EVERY):
            began = time.perf_counter()
            client.get("/health").raise_for_status()
            out.append(time.perf_counter() - began)


def paired(
    contenders: dict[str, Run], streams: int, rounds: int, max_tokens: int
) -> dict[str, list[Round]]:
    """``rounds`` counted rounds of every contender in turn, after one warm-up round each.

    Each round begins with another contender, so the after-effects of one are shared by all.
    """
    results: dict[str, list[Round]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        names = list(contenders)
        first = number % len(names)
        for name in names[first:] + names[:first]:
            result = contenders[name](conversations(number, streams), max_tokens)
            if number:
                results[name].append(result)
    return results


def report(streams: int, results: dict[str, list[Round]]) -> bool:
    """Print the result. Returns whether the rate meets its target against the bare loop."""
    print(f"\n{streams} stream(s)")
    ours, met = results["omlxd"], True
    for name, rounds in results.items():
        rate = statistics.median(r.rate for r in rounds)
        ttft = statistics.median(t for r in rounds for t in r.ttft)
        line = f"  {name:14} {rate:8.1f} tokens/s   first token {ttft * 1000:7.0f} ms"
        line += f"   {rounds[0].tokens} tokens"
        if name != "omlxd":
            ratio = statistics.median(a.rate / b.rate for a, b in zip(ours, rounds, strict=True))
            first = statistics.median(
                statistics.median(a.ttft) / statistics.median(b.ttft)
                for a, b in zip(ours, rounds, strict=True)
            )
            line += f"   omlxd/{name}: rate {ratio:.3f}, first token {first:.3f}"
            met &= ratio >= RATE or name != BARE
        print(line, flush=True)
    return met


def idle_cpu(pid: int, seconds: float) -> float:
    """Share of one core that the process used over ``seconds``."""
    import psutil

    process = psutil.Process(pid)
    before = process.cpu_times()
    time.sleep(seconds)
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--port", type=int, default=18484, help="for mlx_lm.server")
    parser.add_argument("--skip-mlx-lm-server", action="store_true")
    parser.add_argument("--idle", type=float, default=30.0, help="seconds of the idle measurement")
    parser.add_argument("--check", action="store_true", help="fail when a target is missed")
    options = parser.parse_args()
    met = True
    model = real_model()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        link_models(home, model)
        with DaemonProcess(home) as daemon:
            contenders: dict[str, Run] = {
                BARE: BareLoop(model).round,
                "omlxd": OverHttp(daemon.url, model.name).round,
            }
            peer = None
            if not options.skip_mlx_lm_server:
                peer = start_mlx_lm_server(model, options.port)
                contenders["mlx_lm.server"] = OverHttp(
                    f"http://127.0.0.1:{options.port}", "default_model"
                ).round
            try:
                for streams in options.streams:
                    results = paired(contenders, streams, options.rounds, options.max_tokens)
                    met &= report(streams, results)
            finally:
                if peer is not None:
                    peer.kill()
                    peer.wait()
            met &= report_health(daemon, contenders["omlxd"], options.max_tokens)
            if options.idle:
                share = idle_cpu(daemon.pid, options.idle)
                met &= share < IDLE
                print(
                    f"\nidle with a model loaded: {share:.2%} of a core over {options.idle:.0f} s"
                )
            daemon.stop()
    if options.check and not met:
        raise SystemExit(1)


def report_health(daemon: DaemonProcess, run: Run, max_tokens: int) -> bool:
    stop, times = threading.Event(), list[float]()
    probe = threading.Thread(target=probe_health, args=(daemon.url, stop, times))
    probe.start()
    run(conversations(0, 8), max_tokens)
    stop.set()
    probe.join()
    times.sort()
    p99 = times[int(len(times) * 0.99)]
    print(
        f"\n/health during 8 streams: median {statistics.median(times) * 1000:.1f} ms, "
        f"p99 {p99 * 1000:.1f} ms, n={len(times)}"
    )
    return p99 < HEALTH_P99


if __name__ == "__main__":
    main()
