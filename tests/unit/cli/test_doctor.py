"""``omlxd doctor`` as far as it goes without a place to look at."""

import json
from collections.abc import Iterator

import pytest
import structlog

from omlxd.cli.main import run


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def test_a_home_of_nobody_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMLXD_HOME", "~no-such-user/x")
    assert run(["doctor", "--json"]) == 1
    said = capsys.readouterr()
    answer = json.loads(said.out)
    (finding,) = answer["findings"]
    assert (answer["ok"], finding["name"], finding["verdict"]) == (False, "config", "fail")
    assert "~no-such-user/x" in finding["text"]
    assert said.err == ""
