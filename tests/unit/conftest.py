"""Removes the settings of the user's shell from every unit test."""

import os

import pytest


@pytest.fixture(autouse=True)
def _no_settings_of_this_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OMLXD_")]:
        monkeypatch.delenv(name)
