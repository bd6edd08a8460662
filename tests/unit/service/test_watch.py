"""The conditions under which a started job counts as up."""

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from omlxd.errors import ServiceFailed
from omlxd.instance import Healthy, InstanceRecord, Unhealthy
from omlxd.service.exits import Ending, LastExit
from omlxd.service.watch import (
    MOST_TRIES,
    Baseline,
    Failed,
    Observation,
    Pending,
    Started,
    Watch,
    judge,
)
from omlxd.store import write_json
from tests.unit.service.fakes import FakeSupervisor, Time

RECORD = InstanceRecord("new", 4711, 100.0, "1.0", host="127.0.0.1", port=8484)
BEFORE = Baseline(instance_id="old", last_exit=None)
ENDED = LastExit(99.0, 4711, None, Ending.CONFIG, 0, "config_error", "port: wrong", True)


def job(folder: Path, **facts: Any) -> FakeSupervisor:
    return FakeSupervisor(**{"folder": folder, "on_start": _nothing, "loaded": b"job", **facts})


def _nothing(_: bytes) -> None:
    """This job does nothing."""


def test_our_new_instance_that_answers_is_up() -> None:
    assert judge(BEFORE, Observation(RECORD, None, Healthy("new", "1.0"))) == Started(RECORD)


def test_another_instance_on_the_port_is_not_ours() -> None:
    verdict = judge(BEFORE, Observation(RECORD, None, Healthy("stranger", "1.0")))
    assert isinstance(verdict, Pending)
    assert "answered by another omlxd (instance stranger)" in verdict.why


def test_the_instance_that_was_there_before_never_counts() -> None:
    old = replace(RECORD, instance_id="old")
    assert isinstance(judge(BEFORE, Observation(old, None, Healthy("old", "1.0"))), Pending)


@pytest.mark.parametrize("ending", [Ending.CONFIG, Ending.BLOCKED, Ending.LOOPING])
def test_a_permanent_ending_fails_at_once_with_its_own_words(ending: Ending) -> None:
    verdict = judge(BEFORE, Observation(None, replace(ENDED, ending=ending), None))
    assert verdict == Failed("port: wrong")


def test_an_ending_from_before_says_nothing() -> None:
    before = replace(BEFORE, last_exit=ENDED)
    assert judge(before, Observation(RECORD, ENDED, Healthy("new", "1.0"))) == Started(RECORD)


def test_a_temporary_ending_is_waited_out() -> None:
    ended = replace(ENDED, ending=Ending.BROKEN, code=75)
    assert isinstance(judge(BEFORE, Observation(None, ended, None)), Pending)


@pytest.mark.parametrize(
    ("look", "why"),
    [
        (Observation(None, None, None), "has not started"),
        (Observation(replace(RECORD, port=None), None, None), "has not opened its port"),
        (Observation(RECORD, None, Unhealthy("nothing answers")), "nothing answers"),
    ],
)
def test_what_is_waited_for_is_named(look: Observation, why: str) -> None:
    verdict = judge(BEFORE, look)
    assert isinstance(verdict, Pending)
    assert why in verdict.why


def test_waiting_ends_after_a_minute_with_the_last_reason(tmp_path: Path) -> None:
    time = Time()
    watch = Watch(tmp_path, lambda url: Unhealthy("never asked"), time.clock)
    with pytest.raises(ServiceFailed, match=r"after 60 s.*has not started.*ended with signal 9"):
        watch.until_up(watch.baseline(), job(tmp_path, last_exit="signal 9"))
    assert 60 <= time.now < 61


def test_a_process_that_leaves_no_record_is_said_after_a_minute(tmp_path: Path) -> None:
    time = Time()
    watch = Watch(tmp_path, lambda url: Unhealthy("never asked"), time.clock)
    supervisor = job(tmp_path, pid=4711)
    with pytest.raises(ServiceFailed, match=r"process 4711 runs and has left no record.*disk is f"):
        watch.until_up(watch.baseline(), supervisor)
    assert supervisor.done == [], "what runs is not started again"


@pytest.mark.parametrize("last_exit", [None, "exit code 0"])
def test_a_start_that_was_lost_is_made_again(tmp_path: Path, last_exit: str | None) -> None:
    """``last_exit``: None when the supervisor does not say whether the job runs."""
    time = Time()

    def starts(_: bytes) -> None:
        record = {"instance_id": "x", "pid": os.getpid(), "started_at": 1.0, "version": "1"}
        write_json(tmp_path / "instance.json", record | {"host": "127.0.0.1", "port": 8484})

    watch = Watch(tmp_path, lambda url: Healthy("x", "1"), time.clock)
    supervisor = job(tmp_path, on_start=starts, last_exit=last_exit)
    assert watch.until_up(watch.baseline(), supervisor).instance_id == "x"
    assert supervisor.done == ["start"]


def _left(folder: Path, instance_id: str) -> None:
    """The record that a killed daemon leaves."""
    facts = {"instance_id": instance_id, "pid": 2**22 + 1, "started_at": 1.0, "version": "1"}
    write_json(folder / "instance.json", facts)


def _ended(folder: Path, instance_id: str | None, ending: Ending, code: int) -> None:
    who = replace(ENDED, instance_id=instance_id, ending=ending, code=code)
    write_json(folder / "last_exit.json", {**asdict(who), "ending": ending.value})


@pytest.mark.parametrize("recorded", [True, False])
def test_what_ran_and_died_is_the_supervisor_s_to_start_again(
    tmp_path: Path, recorded: bool
) -> None:
    """Faster restarts would all be used up before a temporary fault ends."""
    watch = Watch(tmp_path, lambda url: Unhealthy("never asked"), Time().clock)
    _left(tmp_path, "old")
    before = watch.baseline()
    if recorded:
        _ended(tmp_path, None, Ending.BROKEN, 75)
    else:
        _left(tmp_path, "new")
    supervisor = job(tmp_path, last_exit="exit code 75")
    with pytest.raises(ServiceFailed, match="after 60 s"):
        watch.until_up(before, supervisor)
    assert supervisor.done == []


def test_the_end_of_the_process_before_is_no_life_of_the_new_one(tmp_path: Path) -> None:
    watch = Watch(tmp_path, lambda url: Unhealthy("never asked"), Time().clock)
    _left(tmp_path, "old")
    before = watch.baseline()
    (tmp_path / "instance.json").unlink()
    _ended(tmp_path, "old", Ending.STOPPED, 0)
    supervisor = job(tmp_path, last_exit="exit code 0")
    with pytest.raises(ServiceFailed, match="after 60 s"):
        watch.until_up(before, supervisor)
    assert supervisor.done == ["start"] * MOST_TRIES, "and not for ever"


def test_a_start_that_is_refused_for_a_moment_does_not_end_the_wait(tmp_path: Path) -> None:
    tries: list[bytes] = []

    def starts(content: bytes) -> None:
        tries.append(content)
        if len(tries) == 1:
            raise ServiceFailed("Operation already in progress", code=37)
        record = {"instance_id": "x", "pid": os.getpid(), "started_at": 1.0, "version": "1"}
        write_json(tmp_path / "instance.json", record | {"host": "127.0.0.1", "port": 8484})

    watch = Watch(tmp_path, lambda url: Healthy("x", "1"), Time().clock)
    assert watch.until_up(watch.baseline(), job(tmp_path, on_start=starts)).instance_id == "x"


def test_a_job_that_was_taken_out_meanwhile_is_not_started(tmp_path: Path) -> None:
    watch = Watch(tmp_path, lambda url: Unhealthy("never asked"), Time().clock)
    supervisor = job(tmp_path, loaded=None)
    with pytest.raises(ServiceFailed, match="has not started"):
        watch.until_up(watch.baseline(), supervisor)
    assert supervisor.done == []


def test_a_record_of_a_dead_process_is_no_instance(tmp_path: Path) -> None:
    record = {"instance_id": "x", "pid": 2**22 + 1, "started_at": 1.0, "version": "1"}
    write_json(tmp_path / "instance.json", record)
    watch = Watch(tmp_path, lambda url: Healthy("x", "1"), Time().clock)
    assert watch.observe().record is None
    assert watch.baseline().instance_id == "x"
