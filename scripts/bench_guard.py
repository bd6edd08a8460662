"""The cost of the memory guard: a tick with many models, a host reading, and probes under load.

A tick is the whole tick (look, decide, apply, record) on ports without any cost, so it measures
the guard and not the machine. A reading of this machine is timed separately. /health and
/status are asked over HTTP while streams decode and while long prompts are prefilled on the real
model (scripts/quickstart makes it). Run it with nothing else running.
"""

import argparse
import asyncio
import http.client
import itertools
import logging
import statistics
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import structlog

from omlxd.enforcer.enforcer import Enforcer
from omlxd.enforcer.ports import Activity, GuardPorts
from omlxd.enforcer.settings import GuardSettings
from omlxd.host.clock import continuous_clock
from omlxd.host.protocol import open_host
from omlxd.policy.actions import Action, ActionOutcome
from omlxd.policy.decision import Decision
from omlxd.policy.readings import AllocatorSample, MemoryReading, ModelView
from omlxd.policy.tiers import GuardPolicy, Tier
from omlxd.units import GiB
from tests.support.daemon import DaemonProcess, link_models
from tests.support.real_model import real_model

TICK_MEDIAN, TICK_P99, STATUS_MEDIAN, PROBE_P99 = 1.0, 3.0, 5.0, 100.0
"""Targets in milliseconds; the last is for a probe while a long prompt is prefilled."""

LONG_PROMPT = "The sea was calm and the ship went on. " * 600
"""About 6000 tokens."""

Load = Callable[[str, str, threading.Event], None]
"""(address of the daemon, model, event that ends it): keeps the daemon busy."""


class Scene:
    """20 models and 200 requests on a machine of 128 GiB; ``used`` is set before each tick."""

    def __init__(self, models: int, requests: int) -> None:
        self.used = 40 * GiB
        self.now = 1000.0
        each = requests // models
        self.models = tuple(
            ModelView(f"org/model-{n}", GiB, GiB // 8, bool(each), each, n == 0, float(n))
            for n in range(models)
        )
        policy = GuardPolicy(tier=Tier.CUSTOM, custom_ceiling_bytes=64 * GiB)
        self.enforcer = Enforcer(
            GuardPorts(
                clock=lambda: self.now,
                read=self.read,
                sample=self.sample,
                models=lambda: self.models,
                activity=lambda: Activity(False, any(m.busy for m in self.models), True),
                apply=self.apply,
                set_limits=lambda limits: None,
                after_tick=lambda memory: None,
            ),
            GuardSettings(policy, {}, {}, lambda values: None),
        )

    def read(self, now: float) -> MemoryReading:
        return MemoryReading(
            now, 128 * GiB, footprint=self.used, free=60 * GiB, inactive=0, active=0, external=0
        )

    async def sample(self) -> AllocatorSample | None:
        return AllocatorSample(self.now, self.used, GiB, self.used)

    async def apply(self, action: Action, decision: Decision) -> ActionOutcome:
        return ActionOutcome(action, freed=0)

    async def tick(self, used: int) -> None:
        self.used = used
        self.now += 1.0
        await self.enforcer.tick()


async def timed(count: int, work: Callable[[], Awaitable[object]]) -> list[float]:
    """The milliseconds of each of ``count`` runs, after a warm-up of a tenth as many runs."""
    for _ in range(max(count // 10, 1)):
        await work()
    took = []
    for _ in range(count):
        began = time.perf_counter()
        await work()
        took.append((time.perf_counter() - began) * 1000)
    return took


def report(name: str, took: list[float], *targets: tuple[str, float]) -> bool:
    """Print the result. Returns whether every target is met."""
    ordered = sorted(took)
    found = {"median": statistics.median(ordered), "p99": ordered[int(len(ordered) * 0.99)]}
    against = ", ".join(
        f"{which} {'meets' if found[which] < limit else 'MISSES'} {limit:g} ms"
        for which, limit in targets
    )
    print(
        f"{name:42} median {found['median']:7.3f} ms   p99 {found['p99']:7.3f} ms   "
        f"n={len(took)}   {against}".rstrip(),
        flush=True,
    )
    return all(found[which] < limit for which, limit in targets)


async def bench_ticks(options: argparse.Namespace) -> bool:
    scene = Scene(options.models, options.requests)
    name = f"tick, {options.models} models, {options.requests} requests"
    targets = (("median", TICK_MEDIAN), ("p99", TICK_P99))
    met = True
    for level, used in (("ok", 40), ("soft", 60), ("hard", 63)):
        took = await timed(options.ticks, lambda used=used: scene.tick(used * GiB))  # type: ignore[misc]
        met &= report(f"{name}, {level}", took, *targets)
    host = open_host()
    took = await timed(
        options.ticks // 10, lambda: asyncio.to_thread(host.read, continuous_clock())
    )
    report(f"reading of this machine ({host.name}), in a thread", took)
    return met


def bench_probes(options: argparse.Namespace) -> bool:
    model = real_model()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        link_models(home, model)
        with DaemonProcess(home) as daemon:
            met = bench_status(daemon, model.name, options)
            met &= bench_prefill(daemon, model.name, options)
            daemon.stop()
    return met


def bench_status(daemon: DaemonProcess, model: str, options: argparse.Namespace) -> bool:
    met, streams = True, options.streams
    with busy_with(stream, streams, daemon.url, model):
        daemon.until(lambda: in_phase(daemon, "decode") == streams, "they do not decode", 120)
        for path in ("/status", "/v1/memory-guard"):
            took = asked(daemon.url, path, options.asks)
            targets = (("median", STATUS_MEDIAN),) if path == "/status" else ()
            count = in_phase(daemon, "decode")
            met &= report(f"GET {path}, {count} streams decoding", took, *targets)
    return met


def bench_prefill(daemon: DaemonProcess, model: str, options: argparse.Namespace) -> bool:
    """T19: a probe is answered at once, even during a long prompt."""
    met = True
    with busy_with(prefill, 1, daemon.url, model):
        for path in ("/health", "/status"):
            daemon.until(lambda: in_phase(daemon, "prefill") == 1, "it does not prefill", 120)
            took = asked(daemon.url, path, options.asks)
            met &= report(f"GET {path}, a long prompt in prefill", took, ("p99", PROBE_P99))
    return met


@contextmanager
def busy_with(load: Load, count: int, url: str, model: str) -> Iterator[None]:
    """Keep the daemon busy with ``count`` threads during the block."""
    stop = threading.Event()
    threads = [threading.Thread(target=load, args=(url, model, stop)) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def in_phase(daemon: DaemonProcess, phase: str) -> int:
    return sum(request["phase"] == phase for request in daemon.status()["requests"])


def asked(url: str, path: str, count: int) -> list[float]:
    """The milliseconds of each GET on one connection, with pauses between them."""
    took = []
    # Not httpx: its own work would be a third of the measured time.
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
    for _ in range(count):
        began = time.perf_counter()
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        took.append((time.perf_counter() - began) * 1000)
        if answer.status != 200:
            raise SystemExit(f"{path} answered {answer.status}: {body!r}")
        time.sleep(0.02)
    connection.close()
    return took


def stream(url: str, model: str, stop: threading.Event) -> None:
    """Decode until ``stop``; begin a new story when one ends."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Write a long story about the sea."}],
        "max_tokens": 1500,
        "stream": True,
    }
    with httpx.Client(base_url=url, timeout=300) as client:
        while not stop.is_set():
            with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                for _ in answer.iter_lines():
                    if stop.is_set():
                        break


def prefill(url: str, model: str, stop: threading.Event) -> None:
    """Send long prompts until ``stop``; each differs from the others from the first word on."""
    with httpx.Client(base_url=url, timeout=300) as client:
        for number in itertools.count():
            if stop.is_set():
                return
            text = f"{number}. {LONG_PROMPT}"
            body = {"model": model, "prompt": text, "max_tokens": 1, "stream": True}
            with client.stream("POST", "/v1/completions", json=body) as answer:
                answer.raise_for_status()
                # Leave at the first byte: such a prompt takes long on a slow machine.
                for _ in answer.iter_lines():
                    if stop.is_set():
                        break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--ticks", type=int, default=3000)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--asks", type=int, default=200, help="of each path; 0 leaves them out")
    parser.add_argument("--check", action="store_true", help="fail when a target is missed")
    options = parser.parse_args()
    # No log: its cost would be measured too.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    met = asyncio.run(bench_ticks(options))
    if options.asks:
        met &= bench_probes(options)
    if options.check and not met:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
