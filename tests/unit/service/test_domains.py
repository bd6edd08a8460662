"""Which domain an agent goes to."""

import pytest

from omlxd.errors import ServiceFailed
from omlxd.service.domains import SYSTEM, Domain, Kind, check_rights, choose, parse
from omlxd.service.steps import Presence


def test_a_graphical_session_is_preferred() -> None:
    chosen = choose(501, lambda name: Presence.LOADED)
    assert chosen.name == "gui/501"
    assert chosen.note is None


def test_without_one_the_background_domain_is_taken_and_explained() -> None:
    """T66: over SSH."""
    looks = {"gui/501": Presence.NO_DOMAIN, "user/501": Presence.LOADED}
    chosen = choose(501, looks.__getitem__)
    assert chosen.name == "user/501"
    assert chosen.note is not None
    assert "does not start at boot" in " ".join(chosen.note.split())


def test_an_unclear_answer_is_no_reason_to_leave_the_graphical_domain() -> None:
    assert choose(501, lambda name: Presence.UNCLEAR).name == "gui/501"


def test_without_any_session_the_daemon_is_offered() -> None:
    with pytest.raises(ServiceFailed, match="--system --user NAME"):
        choose(501, lambda name: Presence.NO_DOMAIN)


@pytest.mark.parametrize("domain", [SYSTEM, Domain(Kind.GUI, 501), Domain(Kind.USER, 0)])
def test_a_domain_is_read_back_by_its_name(domain: Domain) -> None:
    assert parse(domain.name) == domain


@pytest.mark.parametrize("name", ["", "gui", "gui/x", "pid/5", "systemd", "system/5", "user/"])
def test_other_names_are_no_domain(name: str) -> None:
    assert parse(name) is None


def test_rights_fit_the_kind() -> None:
    check_rights(501, system=False)
    check_rights(0, system=True)
    with pytest.raises(ServiceFailed, match="sudo"):
        check_rights(501, system=True)
    with pytest.raises(ServiceFailed, match="without sudo"):
        check_rights(0, system=False)
