"""The pool's overhead on a load: A -> B -> A through the daemon against the bare mlx_lm.load.

Both sides load the same files from a warm page cache. The bare side is a process with only mlx-lm,
run before and after the daemon; the daemon has room for one of the two models. mlx_lm.load reads
the tokenizer too; the daemon reads it before a model's first load and keeps it for a while. A swap
is timed in two ways: by POST .../load, and by a request for one token against a load and one token.
Models: two folders of the real model (scripts/quickstart makes it), or those given. Run it with
nothing else running.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.support.daemon import DaemonProcess, link_models, link_or_copy
from tests.support.machine import Machine
from tests.support.real_model import real_model

LOAD, ANSWER, WEIGHTS = "mlx_lm.load", "load and one token", "weights only"
PROMPT = "The sea is"
RATIO = 1.15
"""Target: at most this many times the bare load."""


def timed(work: Callable[[], object]) -> float:
    """The milliseconds that ``work`` takes."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def load_bare(folders: list[str], rounds: int) -> None:
    """Run it in its own process. Prints the milliseconds of each load, by kind, as JSON."""
    import gc

    import mlx.core as mx
    from mlx_lm import generate, load
    from mlx_lm.utils import load_model

    if not mx.metal.is_available():
        mx.set_default_device(mx.cpu)

    def answer(folder: str) -> None:
        model, tokenizer = load(folder)
        generate(model, tokenizer, PROMPT, max_tokens=1)

    kinds: dict[str, Callable[[str], object]] = {
        LOAD: load,
        ANSWER: answer,
        WEIGHTS: lambda folder: load_model(Path(folder)),
    }
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(-1, rounds):
        for folder in folders:
            for kind, work in kinds.items():
                took = timed(partial(work, folder))
                gc.collect()
                mx.clear_cache()
                if turn >= 0:
                    found[kind].append(took)
    print(json.dumps(found))


def bare(folders: list[Path], rounds: int) -> dict[str, list[float]]:
    command = [sys.executable, __file__, "--bare", *map(str, folders), "--rounds", str(rounds)]
    made = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    found: dict[str, list[float]] = json.loads(made.stdout.splitlines()[-1])
    return found


def pooled(home: Path, names: tuple[str, str], rounds: int) -> dict[str, list[float]]:
    """The milliseconds of loads with no model loaded, of unloads, and of A -> B -> A."""
    with DaemonProcess(home, config="models.scan_every = 600\n") as daemon:
        machine = Machine(daemon, names)
        machine.room_for_one()

        def load(name: str) -> None:
            machine.post(f"/v1/models/{name}/load")

        def unload(name: str) -> None:
            machine.post(f"/v1/models/{name}/unload")

        def ask(name: str) -> None:
            answer = machine.ask(name, prompt=PROMPT, max_tokens=1)
            assert answer.status_code == 200, answer.text

        def measured(*works: Callable[[str], None]) -> list[list[float]]:
            took: list[list[float]] = [[] for _ in works]
            for turn in range(-1, rounds):
                for name in names:
                    for work, times in zip(works, took, strict=True):
                        times += [timed(partial(work, name))] * (turn >= 0)
            return took

        loads, unloads = measured(load, unload)
        load(names[1])
        (swaps,) = measured(load)
        (answers,) = measured(ask)
        for name in names:
            assert machine.loads(name) >= 3 * rounds, "both models were in memory"
        daemon.stop()
    return {"load": loads, "unload": unloads, "swap": swaps, "swap for a request": answers}


def report(name: str, took: list[float]) -> None:
    print(
        f"{name:28} median {statistics.median(took):8.1f} ms   least {min(took):8.1f} ms   "
        f"n={len(took)}",
        flush=True,
    )


def two_folders(root: Path) -> list[Path]:
    """The real model under two names: links, so no bytes are copied."""
    link_models(root / "a", real_model())
    made = root / "a/models" / real_model().name
    folders = [root / "folders/a", root / "folders/b"]
    for folder in folders:
        folder.mkdir(parents=True)
        for file in made.iterdir():
            link_or_copy(file, folder / file.name)
    return folders


def bench(folders: list[Path], home: Path, rounds: int) -> bool:
    """Run the benchmark. Returns whether the target is met."""
    link_models(home, *folders)
    first, second = (folder.name for folder in folders)
    alone = bare(folders, rounds)
    daemon = pooled(home, (first, second), rounds)
    for kind, took in bare(folders, rounds).items():
        alone[kind] += took
    bases = {kind: statistics.median(took) for kind, took in alone.items()}
    for kind, took in alone.items():
        report(f"bare, {kind}", took)
    for what, took in daemon.items():
        report(f"daemon, {what}", took)
    met = True
    for what, base in (
        ("load", LOAD),
        ("swap", LOAD),
        ("swap for a request", ANSWER),
        ("load", WEIGHTS),
    ):
        ratio = statistics.median(daemon[what]) / bases[base]
        verdict = "" if base is WEIGHTS else f", {'meets' if ratio <= RATIO else 'MISSES'} {RATIO}"
        met &= base is WEIGHTS or ratio <= RATIO
        print(f"{what}: {ratio:.2f} times {base}{verdict}")
    return met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=Path, help="two folders of different names")
    parser.add_argument("--rounds", type=int, default=7, help="of both models, each side")
    parser.add_argument("--bare", nargs="+", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        load_bare(options.bare, options.rounds)
        return
    if len(options.models) not in (0, 2):
        parser.error("give two model folders, or none")
    with tempfile.TemporaryDirectory(dir=real_model().parent) as scratch:
        root = Path(scratch)
        folders = options.models or two_folders(root)
        if not bench(folders, root / "home", options.rounds):
            sys.exit(1)


if __name__ == "__main__":
    main()
