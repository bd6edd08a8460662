"""What follows a launchctl exit code."""

import pytest

from omlxd.service.launchctl import Code
from omlxd.service.steps import (
    BOOTSTRAP_DELAYS,
    Again,
    Done,
    GiveUp,
    Presence,
    after_bootstrap,
    bootout_is_under_way,
    ended_how,
    explain,
    presence,
)


@pytest.mark.parametrize(
    ("code", "what"),
    [
        (0, Presence.LOADED),
        (113, Presence.NOT_LOADED),
        (112, Presence.NO_DOMAIN),
        (125, Presence.NO_DOMAIN),
        (5, Presence.UNCLEAR),
        (None, Presence.UNCLEAR),
    ],
)
def test_print_tells_presence_by_its_code_alone(code: int | None, what: Presence) -> None:
    assert presence(code) is what


@pytest.mark.parametrize("code", [0, 3, 5, 37, 112, 113, 125])
def test_bootout_accepts_what_leads_to_gone(code: int) -> None:
    assert bootout_is_under_way(code)


@pytest.mark.parametrize("code", [1, 64, 119, None])
def test_bootout_reports_what_does_not(code: int | None) -> None:
    assert not bootout_is_under_way(code)


@pytest.mark.parametrize("code", [5, 17, 37, 119])
def test_passing_codes_are_tried_again_with_growing_delays_and_then_no_more(code: int) -> None:
    steps = [after_bootstrap(code, tries, loaded=False) for tries in range(1, 6)]
    assert steps == [Again(0.5), Again(1.0), Again(2.0), Again(4.0), GiveUp()]
    assert len(BOOTSTRAP_DELAYS) == 4


@pytest.mark.parametrize("code", [64, 112, 125, 1, None])
def test_lasting_codes_are_not_tried_again(code: int | None) -> None:
    assert after_bootstrap(code, 1, loaded=False) == GiveUp()


def test_in_progress_with_the_job_there_is_done() -> None:
    assert after_bootstrap(37, 1, loaded=True) == Done()
    assert after_bootstrap(0, 5, loaded=False) == Done()


@pytest.mark.parametrize("code", [5, 17])
def test_a_job_that_was_there_already_is_not_taken_for_ours(code: int) -> None:
    assert isinstance(after_bootstrap(code, 1, loaded=True), Again)


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
    assert ended_how(status) == words


def test_seventy_eight_is_explained_because_no_log_does() -> None:
    assert "could not open the log files" in ended_how(78 << 8)


@pytest.mark.parametrize("code", [*Code, 141, None])
def test_every_code_has_an_explanation(code: int | None) -> None:
    assert explain(code, "gui/501")


@pytest.mark.parametrize("code", [112, 125])
def test_a_missing_domain_offers_the_daemon(code: int) -> None:
    """T66: clear text instead of a number."""
    assert "sudo omlxd service install --system --user NAME" in explain(code, "gui/501")
