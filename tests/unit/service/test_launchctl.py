"""The reaction to each launchctl exit code."""

import pytest

from omlxd.service.launchctl import (
    BOOTSTRAP_DELAYS,
    BootstrapFailed,
    Bootstrapped,
    Code,
    LoadState,
    RetryBootstrap,
    after_bootstrap,
    bootout_is_under_way,
    describe_wait_status,
    explain,
    load_state,
)


@pytest.mark.parametrize(
    ("code", "what"),
    [
        (0, LoadState.LOADED),
        (113, LoadState.NOT_LOADED),
        (112, LoadState.NO_DOMAIN),
        (125, LoadState.NO_DOMAIN),
        (5, LoadState.UNCLEAR),
        (None, LoadState.UNCLEAR),
    ],
)
def test_print_tells_presence_by_its_code_alone(code: int | None, what: LoadState) -> None:
    assert load_state(code) is what


@pytest.mark.parametrize("code", [0, 3, 5, 37, 112, 113, 125])
def test_bootout_accepts_what_leads_to_gone(code: int) -> None:
    assert bootout_is_under_way(code)


@pytest.mark.parametrize("code", [1, 64, 119, None])
def test_bootout_reports_what_does_not(code: int | None) -> None:
    assert not bootout_is_under_way(code)


@pytest.mark.parametrize("code", [5, 17, 37, 119])
def test_passing_codes_are_tried_again_with_growing_delays_and_then_no_more(code: int) -> None:
    steps = [after_bootstrap(code, tries, loaded=False) for tries in range(1, 6)]
    assert steps == [
        RetryBootstrap(0.5),
        RetryBootstrap(1.0),
        RetryBootstrap(2.0),
        RetryBootstrap(4.0),
        BootstrapFailed(),
    ]
    assert len(BOOTSTRAP_DELAYS) == 4


@pytest.mark.parametrize("code", [64, 112, 125, 1, None])
def test_lasting_codes_are_not_tried_again(code: int | None) -> None:
    assert after_bootstrap(code, 1, loaded=False) == BootstrapFailed()


def test_in_progress_with_the_job_there_is_done() -> None:
    assert after_bootstrap(37, 1, loaded=True) == Bootstrapped()
    assert after_bootstrap(0, 5, loaded=False) == Bootstrapped()


@pytest.mark.parametrize("code", [5, 17])
def test_a_job_that_was_there_already_is_not_taken_for_ours(code: int) -> None:
    assert isinstance(after_bootstrap(code, 1, loaded=True), RetryBootstrap)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "exit code 0"),
        (9, "signal 9"),
        (-6, "signal 6"),
        (256, "exit code 1"),
        (75 << 8, "exit code 75"),
    ],
)
def test_a_wait_status_is_put_in_words(status: int, words: str) -> None:
    assert describe_wait_status(status) == words


def test_seventy_eight_is_explained_because_no_log_does() -> None:
    assert "could not open the log files" in describe_wait_status(78 << 8)


@pytest.mark.parametrize("code", [*Code, 141, None])
def test_every_code_has_an_explanation(code: int | None) -> None:
    assert explain(code, "gui/501")


@pytest.mark.parametrize("code", [112, 125])
def test_a_missing_domain_offers_the_daemon(code: int) -> None:
    """T66: clear text instead of a number."""
    assert "sudo omlxd service install --system --user NAME" in explain(code, "gui/501")
