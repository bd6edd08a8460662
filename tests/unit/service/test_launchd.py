"""The domain of an agent, the order of launchctl calls, and the effect of each exit code."""

from pathlib import Path

import pytest

from omlxd.errors import ServiceFailed
from omlxd.service.job import EXIT_TIMEOUT, LABEL
from omlxd.service.launchctl import LIMIT, Launchctl, ListedJob, LoadState
from omlxd.service.launchd import (
    GONE_WITHIN,
    SYSTEM,
    Domain,
    Kind,
    LaunchdJob,
    check_rights,
    choose_domain,
    parse_domain,
)
from tests.unit.service.fakes import FakeRun, Time


def test_a_graphical_session_is_preferred() -> None:
    chosen = choose_domain(501, lambda name: LoadState.LOADED)
    assert chosen.name == "gui/501"
    assert chosen.note is None


def test_without_one_the_background_domain_is_taken_and_explained() -> None:
    """T66: over SSH."""
    looks = {"gui/501": LoadState.NO_DOMAIN, "user/501": LoadState.LOADED}
    chosen = choose_domain(501, looks.__getitem__)
    assert chosen.name == "user/501"
    assert chosen.note is not None
    assert "does not start at boot" in " ".join(chosen.note.split())


def test_an_unclear_answer_is_no_reason_to_leave_the_graphical_domain() -> None:
    assert choose_domain(501, lambda name: LoadState.UNCLEAR).name == "gui/501"


def test_without_any_session_the_daemon_is_offered() -> None:
    with pytest.raises(ServiceFailed, match="--system --user NAME"):
        choose_domain(501, lambda name: LoadState.NO_DOMAIN)


@pytest.mark.parametrize("domain", [SYSTEM, Domain(Kind.GUI, 501), Domain(Kind.USER, 0)])
def test_a_domain_is_read_back_by_its_name(domain: Domain) -> None:
    assert parse_domain(domain.name) == domain


@pytest.mark.parametrize("name", ["", "gui", "gui/x", "pid/5", "systemd", "system/5", "user/"])
def test_other_names_are_no_domain(name: str) -> None:
    assert parse_domain(name) is None


def test_rights_fit_the_kind() -> None:
    check_rights(501, system=False)
    check_rights(0, system=True)
    with pytest.raises(ServiceFailed, match="sudo"):
        check_rights(501, system=True)
    with pytest.raises(ServiceFailed, match="without sudo"):
        check_rights(0, system=False)


TARGET = f"gui/501/{LABEL}"


def job(run: FakeRun, time: Time) -> LaunchdJob:
    return LaunchdJob(
        Launchctl("/bin/launchctl", run), Domain(Kind.GUI, 501), LABEL, Path("/agents"), time.clock
    )


def test_a_first_load_enables_bootstraps_checks_and_kicks() -> None:
    run = FakeRun(print=[113, 0])
    job(run, Time()).load()
    assert run.calls == [
        ("enable", TARGET),
        ("print", TARGET),
        ("bootstrap", "gui/501", f"/agents/{LABEL}.plist"),
        ("print", TARGET),
        ("kickstart", TARGET),
    ]


def test_a_reload_waits_until_the_old_job_is_gone() -> None:
    run = FakeRun(print=[0, 0, 0, 113, 0])
    time = Time()
    job(run, time).load()
    assert run.verbs == [
        "enable",
        *("print", "bootout", "print", "print", "print"),
        *("bootstrap", "print", "kickstart"),
    ]
    assert len(time.waits) == 2


def test_bootout_is_by_target_and_never_with_wait() -> None:
    run = FakeRun(print=[0, 113])
    job(run, Time()).unload()
    assert ("bootout", TARGET) in run.calls


def test_a_job_that_never_goes_is_given_up_after_the_exit_timeout() -> None:
    time = Time()
    with pytest.raises(ServiceFailed, match="still there 35 s after"):
        job(FakeRun(print=[0]), time).unload()
    assert EXIT_TIMEOUT < GONE_WITHIN <= time.now < GONE_WITHIN + 1


@pytest.mark.parametrize("code", [0, 3, 5, 37, 113])
def test_codes_of_bootout_that_mean_going_or_gone(code: int) -> None:
    job(FakeRun(print=[0, 113], bootout=[code]), Time()).unload()


def test_another_code_of_bootout_is_reported_with_its_number() -> None:
    with pytest.raises(ServiceFailed, match=r"gave 141.*launchctl error 141"):
        job(FakeRun(print=[0], bootout=[141]), Time()).unload()


def test_nothing_loaded_needs_no_bootout() -> None:
    for code in (113, 112, 125):
        run = FakeRun(print=[code])
        job(run, Time()).unload()
        assert run.verbs == ["print"]


def test_bootstrap_is_tried_five_times_with_growing_delays() -> None:
    run = FakeRun(print=[113], bootstrap=[5])
    time = Time()
    with pytest.raises(ServiceFailed, match="log show --last 2m"):
        job(run, time).load()
    assert run.verbs.count("bootstrap") == 5
    assert time.waits == [0.5, 1.0, 2.0, 4.0]


def test_an_old_job_in_the_way_of_bootstrap_is_cleared_before_the_next_try() -> None:
    run = FakeRun(print=[113, 0, 0, 113, 0], bootstrap=[17, 0])
    job(run, Time()).load()
    assert run.verbs.index("bootout") < len(run.verbs) - 1 - run.verbs[::-1].index("bootstrap")


def test_a_disabled_job_is_enabled_again_before_the_next_try() -> None:
    run = FakeRun(print=[113, 113, 113, 0], bootstrap=[119, 0])
    job(run, Time()).load()
    assert run.verbs.count("enable") == 2


@pytest.mark.parametrize("code", [112, 125])
def test_a_missing_domain_is_not_tried_again(code: int) -> None:
    run = FakeRun(print=[code], bootstrap=[code])
    with pytest.raises(ServiceFailed, match="nobody with this account is logged in"):
        job(run, Time()).load()
    assert run.verbs.count("bootstrap") == 1


def test_a_launchctl_that_hangs_is_reported() -> None:
    with pytest.raises(ServiceFailed, match="did not return"):
        job(FakeRun(print=[113], bootstrap=[None]), Time()).load()


def test_bootstrap_that_leaves_nothing_loaded_is_a_failure() -> None:
    with pytest.raises(ServiceFailed, match="then had no"):
        job(FakeRun(print=[113]), Time()).load()


def test_each_call_may_take_longer_than_the_exit_timeout() -> None:
    run = FakeRun(print=[113, 0])
    job(run, Time()).load()
    assert LIMIT > EXIT_TIMEOUT
    assert set(run.limits) == {LIMIT}


def test_stopping_a_process_that_is_not_there_is_fine() -> None:
    job(FakeRun(kill=[3]), Time()).stop_process()
    with pytest.raises(ServiceFailed, match="not loaded"):
        job(FakeRun(kill=[113]), Time()).stop_process()


def test_the_stable_list_is_what_is_parsed() -> None:
    text = '{\n\t"Label" = "x";\n\t"LastExitStatus" = 19968;\n\t"PID" = 712;\n};'
    listed = Launchctl("/bin/launchctl", lambda command, limit: (0, text)).list("x")
    assert listed == ListedJob(pid=712, last_exit=19968)
    assert Launchctl("/x", lambda command, limit: (113, "Could not find")).list("x") is None


def test_a_launchctl_that_is_not_there_is_an_outcome() -> None:
    outcome = Launchctl("/nowhere/launchctl").print("system")
    assert outcome.code is None
    assert "No such file" in outcome.text
