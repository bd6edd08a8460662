"""Checks Python, MLX, the GPU and the memory of the machine.

MLX is imported in another process, which may crash or hang.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from omlxd.doctor.finding import Finding, fail, ok, warn
from omlxd.host.protocol import Host
from omlxd.memory_text import binding_name, remedy, wired_limit_warnings
from omlxd.policy.ceiling import Ceilings, DynamicFilter, compute_ceilings
from omlxd.policy.readings import MemoryReading, OsPressure
from omlxd.policy.tiers import GuardPolicy
from omlxd.service.interpreter import Interpreter, problems
from omlxd.units import GiB, format_bytes

SMALL = 8 * GiB
IMPORT_LIMIT = 60.0
"""Seconds for the import, which is slow on a cold disk."""

NEWEST_PYTHON = (3, 14)
"""MLX has no wheels for newer ones yet."""

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
class RuntimeInfo:
    """Attributes:
    device: the GPU's name; None without one.
    working_set: the most bytes that the GPU's driver recommends; None when it gives no number.
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


def probe_runtime(
    run: Run = run_process, executable: str = sys.executable
) -> RuntimeInfo | RuntimeBroken:
    """MLX's report about itself and the GPU. Never raises."""
    try:
        # -P: do not import a folder called mlx in the working directory.
        done = run([executable, "-P", "-c", _PROBE], IMPORT_LIMIT)
    except subprocess.TimeoutExpired:
        return RuntimeBroken(f"importing it takes longer than {IMPORT_LIMIT:.0f} s")
    except OSError as error:
        return RuntimeBroken(f"{executable} cannot be started: {error.strerror}")
    if done.returncode < 0:
        return RuntimeBroken(f"importing it ends the process with signal {-done.returncode}")
    last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
    try:
        found = json.loads(done.stdout.splitlines()[-1])
        return RuntimeInfo(**{name: found[name] for name in RuntimeInfo.__dataclass_fields__})
    except (ValueError, LookupError, TypeError):
        return RuntimeBroken(last[0] if last else f"importing it fails (code {done.returncode})")


def check_python(python: Interpreter, version: tuple[int, int], text: str) -> Finding:
    """``version``: major and minor; ``text``: the full version."""
    where = f"{text} at {python.executable}"
    if version > NEWEST_PYTHON:
        newest = ".".join(map(str, NEWEST_PYTHON))
        return warn("python", f"{where} is newer than what MLX is built for", f"use {newest}")
    final = [problem for problem in problems(python) if problem.final]
    if final and python.system == "Darwin":
        return fail("python", final[0].text)
    return ok("python", where)


def check_mlx(found: RuntimeInfo | RuntimeBroken) -> Finding:
    if isinstance(found, RuntimeBroken):
        return fail(
            "mlx",
            f"MLX cannot be used: {found.why}",
            "install omlxd again into a fresh environment (uv tool install --reinstall omlxd)",
        )
    return ok("mlx", f"mlx {found.mlx}, mlx-lm {found.mlx_lm}")


def check_gpu(found: RuntimeInfo | RuntimeBroken, platform: str) -> Finding | None:
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


def check_memory(open_host: Callable[[], Host], policy: GuardPolicy, now: float) -> list[Finding]:
    """``now``: the time of the host's clock."""
    try:
        host = open_host()
        reading = host.read(now)
    except (OSError, ValueError) as error:
        return [fail("memory", f"the machine's memory cannot be read: {error}")]
    ceilings, _ = compute_ceilings(reading, policy, DynamicFilter(policy.tier), None, now)
    return [
        check_available(reading, ceilings),
        *check_sources(reading),
        *check_wired_limit(ceilings, host.wired_limit()),
    ]


def check_available(reading: MemoryReading, ceilings: Ceilings) -> Finding:
    if not ceilings.enabled:
        return warn(
            "memory",
            f"{format_bytes(reading.total)}; the memory guard is off",
            "omlxd guard set --enable",
        )
    ceiling = ceilings.admission
    text = (
        f"{format_bytes(reading.total)}, of which models may take {format_bytes(ceiling)} now "
        f"(bound: {binding_name(ceilings, ceilings.binding)}, tier {ceilings.tier.value})"
    )
    if reading.os_pressure in (OsPressure.WARNING, OsPressure.CRITICAL):
        pressure = reading.os_pressure.value
        return warn("memory", f"{text}; the system reports {pressure} pressure", "close other apps")
    if ceiling < reading.total // 4 or reading.total < SMALL:
        return warn("memory", text, remedy(ceilings, ceilings.binding) or None)
    return ok("memory", text)


def check_sources(reading: MemoryReading) -> list[Finding]:
    return [warn("memory sources", line) for line in reading.degraded]


def check_wired_limit(ceilings: Ceilings, kernel_limit: int | None) -> list[Finding]:
    """``kernel_limit``: bytes; 0 is the driver's default, None when there is no such limit."""
    if kernel_limit is None and ceilings.device_cap is None:
        return []
    warnings = wired_limit_warnings(ceilings, kernel_limit)
    if warnings:
        return [warn("wired limit", text) for text in warnings]
    shown = "the driver's default" if not kernel_limit else format_bytes(kernel_limit)
    return [ok("wired limit", shown)]
