"""The reading of a Linux machine, from a fake /proc and /sys."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from omlxd.host.linux import LinuxHost
from omlxd.host.protocol import DeviceMemory, RuntimeMemory
from omlxd.policy.readings import OsPressure, Source
from omlxd.units import GiB, KiB, MiB

MEMINFO = """\
MemTotal:       67108864 kB
MemFree:         8388608 kB
MemAvailable:   20971520 kB
Buffers:          100000 kB
HugePages_Total:       0
SwapTotal:       4194304 kB
SwapFree:        3145728 kB
"""
STATUS = """\
Name:\tpython
VmRSS:\t 9000000 kB
RssAnon:\t 4194304 kB
RssFile:\t 2000000 kB
RssShmem:\t 1048576 kB
VmSwap:\t  524288 kB
"""
MOUNT = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
CALM = "some avg10=0.00 avg60=0.00 avg300=0.00 total=9\nfull avg10=0.00 avg60=0.00 total=3\n"


def never_asked() -> int | None:
    raise AssertionError("psutil is only asked when /proc fails")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine of 64 GiB without cgroup limits."""
    write(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/status": STATUS})
    write(tmp_path, {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": MOUNT})
    write(tmp_path, {"proc/pressure/memory": CALM})
    return tmp_path


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def group(root: Path, path: str, **files: str) -> None:
    """A cgroup below /sys/fs/cgroup; ``memory_max="1"`` is its file memory.max."""
    named = {name.replace("_", ".", 1): text for name, text in files.items()}
    write(root, {f"sys/fs/cgroup{path}/{name}": text for name, text in named.items()})


def linux(root: Path) -> LinuxHost:
    return LinuxHost(root=root, available=never_asked)


def test_the_readings_of_a_plain_machine(root: Path) -> None:
    reading = linux(root).read(7.0)
    assert reading.taken_at == 7.0
    assert reading.total == 64 * GiB
    assert reading.footprint == 4 * GiB + GiB + GiB // 2
    assert reading.graphics_footprint is None
    assert reading.device_cap is None
    assert reading.free == 8 * GiB
    assert reading.inactive == 12 * GiB
    assert (reading.active, reading.wired, reading.external, reading.compressor) == (0, 0, 0, 0)
    assert reading.swap_used == GiB
    assert reading.os_pressure is OsPressure.NORMAL
    assert reading.degraded == ()


def test_each_number_names_its_source_and_time(root: Path) -> None:
    reading = linux(root).read(7.0)
    assert reading.sources["free"] == Source("/proc/meminfo", 7.0)
    assert reading.sources["footprint"] == Source("/proc/self/status", 7.0)
    known = {name for name in reading.__slots__ if getattr(reading, name) is not None}
    assert known - {"taken_at", "sources", "degraded"} == set(reading.sources)


def test_available_below_free_is_no_negative_cache(root: Path) -> None:
    """MemAvailable leaves out the kernel's own reserve, so it can be the lower one."""
    write(root, {"proc/meminfo": MEMINFO.replace("20971520", "8000000")})
    reading = linux(root).read(7.0)
    assert (reading.free, reading.inactive) == (8 * GiB, 0)


# ---- cgroup limits --------------------------------------------------------------------------


def test_a_cgroup_limit_lowers_the_total_and_the_free_memory(root: Path) -> None:
    write(root, {"proc/self/cgroup": "0::/box\n"})
    stat = f"anon 1\ninactive_file {2 * GiB}\nactive_file {GiB}\nfile {9 * GiB}\n"
    group(
        root, "/box", memory_max=f"{16 * GiB}\n", memory_current=f"{11 * GiB}\n", memory_stat=stat
    )
    host = linux(root)
    reading = host.read(7.0)
    assert reading.total == 16 * GiB
    assert host.total_memory() == 16 * GiB
    assert reading.free == 5 * GiB
    assert reading.inactive == 3 * GiB
    assert reading.sources["total"].name.endswith("/sys/fs/cgroup/box")
    assert reading.sources["free"].name.startswith("cgroup ")
    assert reading.degraded == ()


def test_the_lowest_limit_on_the_path_counts_and_so_does_the_least_room(root: Path) -> None:
    write(root, {"proc/self/cgroup": "0::/slice/pod/box\n"})
    group(root, "/slice", memory_max=f"{30 * GiB}", memory_current=f"{29 * GiB}")
    group(root, "/slice/pod", memory_max="max", memory_current=f"{20 * GiB}")
    group(root, "/slice/pod/box", memory_max=f"{20 * GiB}", memory_current=f"{4 * GiB}")
    reading = linux(root).read(7.0)
    assert reading.total == 20 * GiB
    assert reading.free == GiB
    assert reading.inactive == 0


def test_a_limit_above_the_memory_of_the_machine_changes_nothing(root: Path) -> None:
    write(root, {"proc/self/cgroup": "0::/box\n"})
    group(root, "/box", memory_max=f"{640 * GiB}", memory_current=f"{GiB}")
    reading = linux(root).read(7.0)
    assert reading.total == 64 * GiB
    assert (reading.free, reading.inactive) == (8 * GiB, 12 * GiB)


def test_a_group_that_uses_more_than_its_limit_leaves_nothing_free(root: Path) -> None:
    write(root, {"proc/self/cgroup": "0::/box\n"})
    group(root, "/box", memory_max=f"{GiB}", memory_current=f"{2 * GiB}")
    reading = linux(root).read(7.0)
    assert (reading.free, reading.inactive) == (0, 0)


def test_inside_a_container_the_mount_itself_is_the_group(root: Path) -> None:
    write(root, {"proc/self/cgroup": "0::/\n"})
    group(root, "", memory_max=f"{8 * GiB}", memory_current=f"{2 * GiB}")
    reading = linux(root).read(7.0)
    assert reading.total == 8 * GiB
    assert reading.free == 6 * GiB


def test_a_mount_of_a_part_of_the_tree_is_followed_from_there(root: Path) -> None:
    mount = MOUNT.replace(" / /sys", r" /docker/a\040b /sys")
    write(root, {"proc/self/cgroup": "0::/docker/a b/job\n", "proc/self/mountinfo": mount})
    group(root, "/job", memory_max=f"{8 * GiB}", memory_current=f"{GiB}")
    assert linux(root).read(7.0).total == 8 * GiB


@pytest.mark.parametrize(
    ("own", "top"), [("/../../other", "/"), ("/../abc", "/docker/abc"), ("/elsewhere", "/docker")]
)
def test_a_group_outside_of_the_mount_is_read_at_its_top(root: Path, own: str, top: str) -> None:
    mount = MOUNT.replace(" / /sys", f" {top} /sys")
    write(root, {"proc/self/cgroup": f"0::{own}\n", "proc/self/mountinfo": mount})
    group(root, "", memory_max=f"{8 * GiB}", memory_current=f"{GiB}")
    assert linux(root).read(7.0).total == 8 * GiB


def test_a_process_moved_to_another_group_is_followed(root: Path) -> None:
    group(root, "/box", memory_max=f"{16 * GiB}", memory_current=f"{GiB}")
    host = linux(root)
    assert host.read(7.0).total == 64 * GiB
    write(root, {"proc/self/cgroup": "0::/box\n"})
    assert host.read(8.0).total == 16 * GiB


def test_the_first_version_of_cgroups_is_left_alone(root: Path) -> None:
    mount = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    write(root, {"proc/self/cgroup": "4:memory:/box\n", "proc/self/mountinfo": mount})
    reading = linux(root).read(7.0)
    assert reading.total == 64 * GiB
    assert reading.degraded == ()


def test_a_limit_whose_use_is_unreadable_still_lowers_the_total(root: Path) -> None:
    write(root, {"proc/self/cgroup": "0::/box\n"})
    group(root, "/box", memory_max=f"{16 * GiB}")
    reading = linux(root).read(7.0)
    assert reading.total == 16 * GiB
    assert reading.free == 8 * GiB
    assert any("memory.current cannot be read" in line for line in reading.degraded)


# ---- pressure -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("some", "full", "level"),
    [
        ("9.99", "9.99", OsPressure.NORMAL),
        ("10.00", "0.00", OsPressure.WARNING),
        ("99.00", "19.99", OsPressure.WARNING),
        ("20.00", "20.00", OsPressure.CRITICAL),
    ],
)
def test_stalls_are_the_pressure_level(root: Path, some: str, full: str, level: OsPressure) -> None:
    text = f"some avg10={some} avg60=0.00 total=1\nfull avg10={full} avg60=0.00 total=1\n"
    write(root, {"proc/pressure/memory": text})
    assert linux(root).read(7.0).os_pressure is level


@pytest.mark.parametrize("text", ["", "some\n", "some avg10=x total=1\n", "nonsense"])
def test_a_pressure_file_that_says_nothing_is_unknown(root: Path, text: str) -> None:
    write(root, {"proc/pressure/memory": text})
    reading = linux(root).read(7.0)
    assert reading.os_pressure is None
    assert "os_pressure" not in reading.sources


def test_a_kernel_without_pressure_files_is_no_failure(root: Path) -> None:
    (root / "proc/pressure/memory").unlink()
    reading = linux(root).read(7.0)
    assert reading.os_pressure is None
    assert reading.degraded == ()


def test_the_pressure_in_our_own_group_counts_when_it_is_worse(root: Path) -> None:
    write(root, {"proc/self/cgroup": "0::/box\n"})
    group(root, "/box", memory_pressure="some avg10=50.0 total=1\nfull avg10=30.0 total=1\n")
    reading = linux(root).read(7.0)
    assert reading.os_pressure is OsPressure.CRITICAL
    assert reading.sources["os_pressure"].name.endswith("box/memory.pressure")


# ---- what fails -------------------------------------------------------------------------------


def test_without_meminfo_psutil_says_what_is_free(root: Path) -> None:
    """[R] A reading that fails degrades ... -> psutil's available memory as "free" (inactive and
    other apps 0) -> static ceiling."""
    (root / "proc/meminfo").unlink()
    reading = LinuxHost(root=root, available=lambda: 3 * GiB).read(7.0)
    assert reading.total > 0
    assert reading.sources["total"].name == "sysconf"
    assert (reading.free, reading.inactive, reading.active) == (3 * GiB, 0, 0)
    assert reading.sources["free"].name == "psutil"
    assert reading.swap_used is None
    assert reading.degraded == (
        "/proc/meminfo cannot be read: psutil's available as free",
        "/proc/meminfo says nothing of swap: it is unknown",
    )


def test_without_psutil_either_only_the_total_is_known(root: Path) -> None:
    for name in ("meminfo", "self/status", "self/cgroup", "self/mountinfo", "pressure/memory"):
        (root / "proc" / name).unlink()
    reading = LinuxHost(root=root, available=lambda: None).read(7.0)
    known = {name for name in reading.__slots__ if getattr(reading, name) is not None}
    assert known == {"taken_at", "total", "sources", "degraded"}
    assert len(reading.degraded) == 3


def test_without_available_memory_nothing_counts_as_reclaimable(root: Path) -> None:
    text = "\n".join(line for line in MEMINFO.splitlines() if "Available" not in line)
    write(root, {"proc/meminfo": text})
    reading = linux(root).read(7.0)
    assert (reading.free, reading.inactive) == (8 * GiB, 0)
    assert reading.degraded == (
        "/proc/meminfo has no MemAvailable: reclaimable memory counts as 0",
    )


@pytest.mark.parametrize("line", ["", "RssAnon:\t lots kB\n", "RssAnon:\t 5 MB\n"])
def test_an_unreadable_footprint_is_unknown(root: Path, line: str) -> None:
    write(root, {"proc/self/status": f"Name:\tpython\n{line}"})
    reading = linux(root).read(7.0)
    assert reading.footprint is None
    assert reading.degraded == ("/proc/self/status has no RssAnon: the footprint is unknown",)


def test_a_process_without_swap_line_has_none_swapped(root: Path) -> None:
    write(root, {"proc/self/status": "RssAnon: 7 kB\n"})
    assert linux(root).read(7.0).footprint == 7 * KiB
    assert linux(root).footprints() == (7 * KiB, None)


# ---- a CUDA device as the guarded domain --------------------------------------------------------


def on_device(root: Path, device: DeviceMemory) -> LinuxHost:
    return LinuxHost(RuntimeMemory(device=lambda: device), root=root, available=never_asked)


def test_on_cuda_the_devices_memory_is_the_guarded_domain(root: Path) -> None:
    """[R] On CUDA: total, free of the device, MLX active + pool as the footprint, the rest 0."""
    write(root, {"proc/self/cgroup": "0::/box\n"})
    group(root, "/box", memory_max=f"{16 * GiB}", memory_current=f"{11 * GiB}")
    device = DeviceMemory(taken_at=6.5, total=140 * GiB, free=90 * GiB, used=40 * GiB)
    host = on_device(root, device)
    reading = host.read(7.0)
    assert host.total_memory() == reading.total == 140 * GiB
    assert reading.free == 90 * GiB
    assert reading.footprint == 40 * GiB
    assert (reading.inactive, reading.active, reading.external) == (0, 0, 0)
    assert reading.device_cap is None
    assert reading.sources["free"] == Source("device", 6.5)
    assert reading.sources["footprint"] == Source("device thread", 6.5)
    assert reading.swap_used == GiB
    assert reading.os_pressure is OsPressure.NORMAL
    assert reading.degraded == ()


def test_a_device_that_does_not_say_what_is_free_leaves_the_static_ceiling(root: Path) -> None:
    device = DeviceMemory(taken_at=6.5, total=140 * GiB, free=None, used=None)
    reading = on_device(root, device).read(7.0)
    assert reading.total == 140 * GiB
    assert (reading.free, reading.footprint, reading.inactive) == (None, None, None)
    assert reading.degraded == ("the device does not say how much memory is free",)


# ---- giving back --------------------------------------------------------------------------------


def test_there_is_no_wired_limit_here(root: Path) -> None:
    assert linux(root).wired_limit() is None


def test_what_malloc_gave_back_is_measured_and_not_assumed(root: Path) -> None:
    released = linux(root).release_free_memory()
    # The fake status does not change.
    assert released in (0, None)


def test_freed_memory_that_malloc_still_holds_is_given_back() -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("needs Linux's /proc")
    host = LinuxHost()
    if host.release_free_memory() is None:
        pytest.skip("this C library has no malloc_trim")
    # Many blocks under the mmap threshold, and one kept above them: the heap's top cannot shrink.
    blocks = [bytes(60 * KiB) for _ in range(600)]
    kept = bytes(60 * KiB)
    del blocks
    released = host.release_free_memory()
    assert released is not None
    assert released >= 20 * MiB
    assert len(kept) == 60 * KiB
