"""Makes the end of an engine quick."""

import gc

import pytest


@pytest.fixture(autouse=True, scope="package")
def _what_earlier_tests_left_is_not_looked_at() -> None:
    """By the collection of garbage with which each engine ends."""
    gc.collect()
    gc.freeze()
