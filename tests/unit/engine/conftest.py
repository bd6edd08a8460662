"""Makes the end of each engine fast."""

import gc

import pytest


@pytest.fixture(autouse=True, scope="package")
def _what_earlier_tests_left_is_not_looked_at() -> None:
    """The garbage collection at the end of each engine does not look at older objects."""
    gc.collect()
    gc.freeze()
