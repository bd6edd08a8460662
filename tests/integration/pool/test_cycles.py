"""Fifty cycles of loading and unloading two models leave the process as small as one does."""

import statistics
from pathlib import Path

import psutil

from omlxd.units import MiB
from tests.support.daemon import DaemonProcess, link_models
from tests.support.machine import Machine

CYCLES = 50
SHARE, SLACK = 0.05, 50 * MiB


class Footprint:
    """Bytes, by the system and by the daemon's own account."""

    def __init__(self, machine: Machine) -> None:
        machine.settled_usage()
        self.resident = psutil.Process(machine.daemon.pid).memory_info().rss
        self.reported = int(machine.daemon.status()["current_bytes"])


def test_t11_fifty_cycles_of_two_models_leave_nothing_behind(
    tmp_path: Path, weighty: tuple[Path, Path]
) -> None:
    """Each cycle loads and unloads one after the other; both have answered before the first."""
    home = tmp_path / "home"
    link_models(home, *weighty)
    models = ("a", "b")
    with DaemonProcess(home, config="models.scan_every = 600\n") as daemon:
        machine = Machine(daemon, models)
        freed: dict[str, list[int]] = {model: [] for model in models}
        footprints = []
        for cycle in range(CYCLES):
            for model in models:
                machine.post(f"/v1/models/{model}/load")
                if cycle % 10 == 0:
                    assert machine.ask(model).status_code == 200
                freed[model].append(machine.post(f"/v1/models/{model}/unload")["freed_bytes"])
            if cycle in (0, CYCLES - 1):
                footprints.append(Footprint(machine))
        first, last = footprints
        assert last.resident - first.resident <= max(SHARE * first.resident, SLACK)
        assert last.reported - first.reported <= max(SHARE * first.reported, SLACK)
        for model in models:
            assert statistics.median(freed[model]) > 0.9 * machine.weights(model)
        assert daemon.events("freed_memory_not_seen") == []
        assert [machine.loads(model) for model in models] == [1 + CYCLES] * 2
        assert daemon.stop() == 0
