"""Fixtures that several of these test files share."""

import pytest

from tests.support.fake_pool import World


@pytest.fixture(scope="session")
def still() -> World:
    """For requests that change nothing, because making an application takes long."""
    return World()
