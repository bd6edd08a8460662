"""Where models are searched, and scans on threads: folders absent, hanging, coming back."""

import asyncio
import threading
from pathlib import Path

import pytest

from omlxd.errors import ConfigError
from omlxd.library.catalog import Catalog, CatalogModel, RootScan, RootState, RootStatus
from omlxd.library.folder import HeaderCache
from omlxd.library.scanner import MOST_ABANDONED, Scanner, model_roots
from tests.unit.pool.fakes import FakeTime, a_model, settle

OK = RootState.OK
OWN = Path("/data/models")


class Disk:
    """What each root holds; a root in ``stuck`` does not answer until its event is set."""

    def __init__(self) -> None:
        self.holds: dict[str, list[CatalogModel]] = {}
        self.stuck: dict[str, threading.Event] = {}
        self.looks: list[str] = []
        self.state: dict[str, RootState] = {}
        """The states of roots that exist and cannot be read."""

    def scan(self, path: str, headers: HeaderCache) -> RootScan:
        """What the root held when the scan began."""
        self.looks.append(path)
        held = self.holds.get(path)
        if path in self.stuck:
            self.stuck[path].wait(30)
        if held is None:
            return RootScan(RootStatus(path, RootState.ABSENT, "not there"))
        if path in self.state:
            return RootScan(RootStatus(path, self.state[path], "not now"))
        return RootScan(RootStatus(path, OK), tuple(held))


class Watch:
    def __init__(self, disk: Disk, *roots: str) -> None:
        self.time = FakeTime()
        self.catalogs: list[Catalog] = []
        self.scanner = Scanner(
            roots, 10.0, self.time.call_later, self.catalogs.append, scan=disk.scan
        )

    def states(self) -> list[RootState]:
        return [root.state for root in self.scanner.catalog().roots]


async def test_all_roots_are_joined_in_order() -> None:
    disk = Disk()
    disk.holds = {"/one": [a_model("m"), a_model("n")], "/two": [a_model("m", size=5)]}
    watch = Watch(disk, "/one", "/two", "/one")
    assert not watch.scanner.first_scan_over
    catalog = await watch.scanner.scan()
    assert watch.scanner.first_scan_over
    assert set(catalog.models) == {"m", "n"}
    assert catalog.models["m"].weights_bytes != 5
    assert len(catalog.roots) == 2


async def test_a_root_that_fails_for_a_moment_keeps_its_models() -> None:
    """A temporary error must not unload a model in use; a missing folder may."""
    disk = Disk()
    disk.holds = {"/one": [a_model("m")]}
    watch = Watch(disk, "/one")
    await watch.scanner.scan()
    disk.state["/one"] = RootState.FAILED
    assert set((await watch.scanner.scan()).models) == {"m"}
    assert watch.states() == [RootState.FAILED]
    del disk.holds["/one"]
    assert not (await watch.scanner.scan()).models


async def test_a_hanging_root_is_reported_and_holds_up_nobody() -> None:
    """T63: the scan is off the main thread with a time limit; the status says so."""
    disk = Disk()
    disk.holds = {"/good": [a_model("m")], "/slow": [a_model("late")]}
    disk.stuck["/slow"] = threading.Event()
    watch = Watch(disk, "/slow", "/good")
    looking = asyncio.create_task(watch.scanner.scan())
    while "m" not in watch.scanner.catalog().models:
        await asyncio.sleep(0)
    assert watch.states() == [RootState.SCANNING, OK]
    await watch.time.pass_by(10)
    catalog = await looking
    assert watch.states() == [RootState.HANGING, OK]
    assert "takes longer than 10 s" in (catalog.roots[0].detail or "")
    again = asyncio.create_task(watch.scanner.scan())
    await watch.time.pass_by(10)
    await again
    assert disk.looks.count("/slow") == 1, "a second thread hangs as well"
    disk.stuck["/slow"].set()
    while "late" not in watch.scanner.catalog().models:
        await asyncio.sleep(0)
    assert watch.states() == [OK, OK]


async def test_a_rescan_sees_what_came_while_an_older_look_was_under_way() -> None:
    disk = Disk()
    disk.holds = {"/root": []}
    watch = Watch(disk, "/root")
    await watch.scanner.scan()
    held = disk.stuck["/root"] = threading.Event()
    watch.scanner.begin()
    while disk.looks.count("/root") < 2:
        await asyncio.sleep(0)
    disk.holds["/root"] = [a_model("pulled")]
    looking = asyncio.create_task(watch.scanner.scan())
    await settle()
    held.set()
    catalog = await looking
    assert set(catalog.models) == {"pulled"}
    assert disk.looks.count("/root") == 3


async def test_a_thread_that_hangs_for_good_does_not_hide_a_volume_that_is_back() -> None:
    disk = Disk()
    dead = disk.stuck["/mount"] = threading.Event()
    watch = Watch(disk, "/mount")
    watch.scanner.scan_every(60.0)
    while not disk.looks:
        await asyncio.sleep(0)
    await watch.time.pass_by(250)
    assert (watch.states(), disk.looks) == ([RootState.HANGING], ["/mount"])
    del disk.stuck["/mount"]
    disk.holds["/mount"] = [a_model("m")]
    await watch.time.pass_by(60)
    while watch.states() != [OK]:
        await asyncio.sleep(0)
    watch.scanner.stop()
    disk.holds["/mount"] = []
    dead.set()
    await asyncio.to_thread(lambda: None)
    await settle()
    assert set(watch.scanner.catalog().models) == {"m"}, "what the old thread saw is old"


async def test_only_so_many_threads_hang_on_one_root() -> None:
    disk = Disk()
    dead = disk.stuck["/mount"] = threading.Event()
    watch = Watch(disk, "/mount")
    watch.scanner.scan_every(60.0)
    await watch.time.pass_by(5000)
    while len(disk.looks) < 1 + MOST_ABANDONED:
        await asyncio.sleep(0)
    await watch.time.pass_by(5000)
    assert len(disk.looks) == 1 + MOST_ABANDONED
    dead.set()


async def test_a_root_that_begins_to_hang_keeps_its_models() -> None:
    disk = Disk()
    disk.holds = {"/root": [a_model("m")]}
    watch = Watch(disk, "/root")
    await watch.scanner.scan()
    disk.stuck["/root"] = threading.Event()
    looking = asyncio.create_task(watch.scanner.scan())
    await watch.time.pass_by(10)
    catalog = await looking
    assert catalog.roots[0].state is RootState.HANGING
    assert set(catalog.models) == {"m"}
    disk.stuck["/root"].set()


async def test_a_root_that_is_absent_is_tried_again_and_its_models_appear() -> None:
    disk = Disk()
    watch = Watch(disk, "/usb")
    watch.scanner.scan_every(60.0)
    while watch.states() != [RootState.ABSENT]:
        await asyncio.sleep(0)
    disk.holds["/usb"] = [a_model("m")]
    await watch.time.pass_by(60)
    while watch.states() != [OK]:
        await asyncio.sleep(0)
    assert set(watch.scanner.catalog().models) == {"m"}
    del disk.holds["/usb"]
    await watch.time.pass_by(60)
    while watch.states() != [RootState.ABSENT]:
        await asyncio.sleep(0)
    assert watch.scanner.catalog().models == {}
    watch.scanner.stop()
    looks = len(disk.looks)
    await watch.time.pass_by(600)
    assert len(disk.looks) == looks


async def test_a_fault_in_a_scan_is_shown_and_survived() -> None:
    disk = Disk()

    def broken(path: str, headers: HeaderCache) -> RootScan:
        raise RuntimeError("a bug")

    time = FakeTime()
    scanner = Scanner(["/root"], 10.0, time.call_later, lambda _: None, scan=broken)
    catalog = await scanner.scan()
    assert catalog.roots[0].state is RootState.FAILED
    assert disk.looks == []


def test_without_wishes_our_own_folder_and_the_hub_s_cache_are_read() -> None:
    assert model_roots(None, OWN, {"HF_HOME": "/hf"}) == (OWN, Path("/hf/hub"))
    older = {"HUGGINGFACE_HUB_CACHE": "/older", "HF_HOME": "/hf"}
    assert model_roots(None, OWN, older) == (OWN, Path("/older"))
    assert model_roots(None, OWN, {"HF_HUB_CACHE": "/cache", **older}) == (OWN, Path("/cache"))


def test_our_own_folder_is_read_beside_the_configured_ones() -> None:
    """A pull puts its models there."""
    assert model_roots(("/a", "/b"), OWN, {}) == (Path("/a"), Path("/b"), OWN)
    assert model_roots((str(OWN), "/b"), OWN, {}) == (OWN, Path("/b"))
    assert model_roots((), OWN, {}) == (OWN,)


def test_the_home_of_nobody_is_a_mistake_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match=r"models\.dirs"):
        model_roots(("~nobody-at-all/models",), OWN, {})
    for variable in ("HF_HUB_CACHE", "HF_HOME"):
        with pytest.raises(ConfigError, match=f"{variable}.*'~nobody-at-all/hub'"):
            model_roots(None, OWN, {variable: "~nobody-at-all/hub"})
