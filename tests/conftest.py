"""Fixtures that more than one package of tests uses."""

from pathlib import Path

import pytest

from tests.support.real_model import real_model


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of SmolLM2-135M-Instruct, float32: a real model that answers sensibly."""
    return real_model()
