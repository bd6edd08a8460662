"""Compiles the fake of Darwin's kernel calls, and controls it by names instead of offsets."""

import ctypes
import shutil
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omlxd.host.darwin_calls import DarwinKernel
from omlxd.units import GiB

SOURCE = Path(__file__).with_name("darwin_kernel.c")
PAGE = 16384
CANARY = 0xA5


@dataclass(frozen=True)
class Release:
    """The kernel of one macOS release: words of two structures, and the newest rusage flavor."""

    name: str
    vm_words: int
    task_words: int
    rusage_flavors: int = 6


RELEASES = (
    Release("macOS 13", 38, 89),
    Release("macOS 14", 38, 89),
    Release("macOS 15", 38, 93),
    Release("macOS 26.0", 40, 93),
    Release("macOS 26 later", 62, 93),
)

VM_FIELDS: Mapping[str, tuple[int, str]] = {
    "free": (0, "<I"),
    "active": (4, "<I"),
    "inactive": (8, "<I"),
    "wired": (12, "<I"),
    "purgeable": (88, "<I"),
    "speculative": (92, "<I"),
    "compressor": (128, "<I"),
    "throttled": (132, "<I"),
    "external": (136, "<I"),
    "internal": (140, "<I"),
    "swapped": (152, "<Q"),
}
TASK_FIELDS: Mapping[str, tuple[int, str]] = {
    "resident_size": (16, "<Q"),
    "phys_footprint": (144, "<Q"),
    "graphics_footprint": (272, "<q"),
    "graphics_footprint_compressed": (280, "<q"),
    "graphics_nofootprint": (288, "<q"),
    "limit_bytes_remaining": (336, "<Q"),
}
RUSAGE_FIELDS: Mapping[str, tuple[int, str]] = {
    "wired_size": (56, "<Q"),
    "resident_size": (64, "<Q"),
    "phys_footprint": (72, "<Q"),
    "lifetime_max_phys_footprint": (240, "<Q"),
}


def compile_kernel(folder: Path) -> Path:
    """The shared library made in ``folder``."""
    return _compile(SOURCE.read_text(), folder, "darwin_kernel")


def has_compiler() -> bool:
    return shutil.which("cc") is not None


def _compile(text: str, folder: Path, name: str) -> Path:
    library = folder / f"{name}.so"
    flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-O1"]
    subprocess.run(
        ["cc", *flags, "-x", "c", "-", "-o", str(library)], input=text.encode(), check=True
    )
    return library


class StandInKernel:
    """The fake kernel; by default of a Mac with 32 GiB."""

    def __init__(self, library: Path) -> None:
        self._path = library
        self._library = ctypes.CDLL(str(library))
        self._library.stand_in_relief_goal.restype = ctypes.c_size_t
        self.buffers: list[Any] = []
        self.be(RELEASES[2])

    def be(self, release: Release) -> None:
        """Start again as the kernel of ``release``."""
        self.buffers.clear()
        self._library.stand_in_reset(release.vm_words, release.task_words, release.rusage_flavors)
        self.vm(
            free=100_000,
            active=600_000,
            inactive=500_000,
            wired=700_000,
            speculative=20_000,
            compressor=80_000,
            external=250_000,
            internal=800_000,
            swapped=9_999,
        )
        self.task(
            phys_footprint=6 * GiB,
            graphics_footprint=5 * GiB,
            graphics_footprint_compressed=GiB // 2,
            graphics_nofootprint=7 * GiB,
            resident_size=2 * GiB,
        )
        self.rusage(
            wired_size=GiB,
            resident_size=2 * GiB,
            phys_footprint=6 * GiB,
            lifetime_max_phys_footprint=9 * GiB,
        )
        self.sysctl("hw.memsize", struct.pack("<Q", 32 * GiB))
        self.sysctl("iogpu.wired_limit_mb", struct.pack("<i", 0))
        self.sysctl("kern.memorystatus_vm_pressure_level", struct.pack("<i", 1))
        self.sysctl("vm.swapusage", struct.pack("<QQQIi", 4 * GiB, 3 * GiB, GiB, PAGE, 1))

    def open(self) -> DarwinKernel:
        """The layer under test, loaded against this library, with buffers full of canaries."""
        return DarwinKernel(str(self._path), allocate=self._allocate)

    def vm(self, **pages: int) -> None:
        self._set(self._library.stand_in_vm, VM_FIELDS, pages)

    def task(self, **values: int) -> None:
        self._set(self._library.stand_in_task, TASK_FIELDS, values)

    def rusage(self, **values: int) -> None:
        self._set(self._library.stand_in_rusage, RUSAGE_FIELDS, values)

    def sysctl(self, name: str, value: bytes = b"", error: int = 0) -> None:
        size = ctypes.c_size_t(len(value))
        self._library.stand_in_sysctl(name.encode(), value, size, error)

    def tell(self, name: str, value: int) -> None:
        """Call ``stand_in_<name>(value)``."""
        getattr(self._library, f"stand_in_{name}")(ctypes.c_uint64(value))

    def ask(self, name: str) -> int:
        """The counter ``stand_in_<name>()``."""
        return int(getattr(self._library, f"stand_in_{name}")())

    def at(self, now: float) -> None:
        """Set the kernel's own clock, which its rate limit uses."""
        self.tell("clock", int(now * 1e9))

    def untouched_after(self, buffer: Any, size: int) -> bool:
        """Whether nothing was written to ``buffer`` after its first ``size`` bytes."""
        return bool(buffer.raw[size:] == bytes([CANARY]) * (len(buffer) - size))

    def without(self, symbol: str, folder: Path) -> "StandInKernel":
        """The kernel of a release whose library does not export ``symbol``."""
        text = SOURCE.read_text()
        for end in ("(", " ="):
            text = text.replace(f"{symbol}{end}", f"absent_{symbol}{end}")
        return StandInKernel(_compile(text, folder, f"no_{symbol}"))

    def _allocate(self, size: int) -> Any:
        buffer = ctypes.create_string_buffer(bytes([CANARY]) * size, size)
        self.buffers.append(buffer)
        return buffer

    def _set(
        self, setter: Any, fields: Mapping[str, tuple[int, str]], values: Mapping[str, int]
    ) -> None:
        for name, value in values.items():
            offset, form = fields[name]
            data = struct.pack(form, value)
            setter(ctypes.c_size_t(offset), data, ctypes.c_size_t(len(data)))
