"""What several files of these tests share."""

import pytest

from tests.support.fake_pool import World


@pytest.fixture(scope="session")
def still() -> World:
    """For requests that change nothing: to make an application takes long."""
    return World()
