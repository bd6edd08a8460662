"""Checks Python and MLX; MLX is imported in a process of its own, which may crash or hang."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from omlxd.doctor.finding import Finding, fail, ok, warn
from omlxd.service.interpreter import Interpreter, objections
from omlxd.units import format_bytes

LIMIT = 60.0
"""Seconds for the import; a cold disk takes some."""

NEWEST_PYTHON = (3, 14)
"""Newer ones have no wheels of MLX yet."""

_PROBE = """
import json, importlib.metadata as m
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
import mlx.core as mx
gpus = mx.device_count(mx.gpu)
info = dict(mx.device_info()) if gpus else {}
import mlx_lm
print(json.dumps({
    "mlx": version("mlx"), "mlx_lm": version("mlx-lm"), "gpus": gpus,
    "device": info.get("device_name"),
    "working_set": info.get("max_recommended_working_set_size"),
}))
"""


@dataclass(frozen=True, slots=True)
class RuntimeFacts:
    """Attributes:
    device: the GPU's name; None without one.
    working_set: bytes that the GPU's driver recommends at most; None where it says nothing.
    """

    mlx: str
    mlx_lm: str
    gpus: int
    device: str | None
    working_set: int | None


@dataclass(frozen=True, slots=True)
class RuntimeBroken:
    why: str


Run = Callable[[Sequence[str], float], subprocess.CompletedProcess[str]]


def run_process(command: Sequence[str], limit: float) -> subprocess.CompletedProcess[str]:
    """Raises TimeoutExpired, OSError."""
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=limit,
        check=False,
    )


def probe(run: Run = run_process, executable: str = sys.executable) -> RuntimeFacts | RuntimeBroken:
    """What MLX says of itself and of the GPU. Never raises."""
    try:
        # -P: a folder called mlx in the working folder is not the runtime.
        done = run([executable, "-P", "-c", _PROBE], LIMIT)
    except subprocess.TimeoutExpired:
        return RuntimeBroken(f"importing it takes longer than {LIMIT:.0f} s")
    except OSError as error:
        return RuntimeBroken(f"{executable} cannot be started: {error.strerror}")
    if done.returncode < 0:
        return RuntimeBroken(f"importing it ends the process with signal {-done.returncode}")
    last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
    try:
        found = json.loads(done.stdout.splitlines()[-1])
        return RuntimeFacts(**{name: found[name] for name in RuntimeFacts.__dataclass_fields__})
    except (ValueError, LookupError, TypeError):
        return RuntimeBroken(last[0] if last else f"importing it fails (code {done.returncode})")


def check_python(python: Interpreter, version: tuple[int, int], text: str) -> Finding:
    """``version``: major and minor; ``text``: in full."""
    where = f"{text} at {python.executable}"
    if version > NEWEST_PYTHON:
        newest = ".".join(map(str, NEWEST_PYTHON))
        return warn("python", f"{where} is newer than what MLX is built for", f"use {newest}")
    final = [objection for objection in objections(python) if objection.final]
    if final and python.system == "Darwin":
        return fail("python", final[0].text)
    return ok("python", where)


def check_mlx(found: RuntimeFacts | RuntimeBroken) -> Finding:
    if isinstance(found, RuntimeBroken):
        return fail(
            "mlx",
            f"MLX cannot be used: {found.why}",
            "install omlxd again into a fresh environment (uv tool install --reinstall omlxd)",
        )
    return ok("mlx", f"mlx {found.mlx}, mlx-lm {found.mlx_lm}")


def check_gpu(found: RuntimeFacts | RuntimeBroken, platform: str) -> Finding | None:
    """None when nothing is known."""
    if isinstance(found, RuntimeBroken):
        return None
    if not found.gpus:
        text = "MLX finds no GPU; models run on the CPU, slowly"
        if platform == "darwin":
            return fail("gpu", text, "run it on an Apple silicon Mac, outside of a sandbox or VM")
        return warn("gpu", text, "on Linux with an NVIDIA GPU: install omlxd[cuda]")
    size = "" if found.working_set is None else f", {format_bytes(found.working_set)} usable"
    return ok("gpu", f"{found.device or 'present'}{size}")
