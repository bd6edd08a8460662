"""The support for daemons under test, on machines with other volumes."""

import errno
import os
from pathlib import Path

import pytest

from tests.support.daemon import link_models


def test_models_are_copied_where_they_cannot_be_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the clone and pytest's folder are on different volumes."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", refuse)
    model = tmp_path / "m"
    model.mkdir()
    (model / "config.json").write_text("{}")
    link_models(tmp_path / "home", model)
    assert (tmp_path / "home/models/m/config.json").read_text() == "{}"
