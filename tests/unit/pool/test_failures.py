"""The errors of failed loads, as clients read them."""

import pytest

from omlxd.errors import ModelBroken, ModelLoadFailed, OmlxdError, QueueFull
from omlxd.pool.failures import without_paths
from tests.unit.pool.fakes import a_model

FOLDER = "/models/org/m"


@pytest.mark.parametrize(
    ("error", "message", "facts"),
    [
        (
            ModelBroken(f"{FOLDER}/config.json is not JSON.", file=f"{FOLDER}/config.json"),
            "Model 'org/m' cannot be loaded: config.json is not JSON.",
            {"file": "config.json"},
        ),
        (
            ModelBroken(f"{FOLDER} is empty.", file=FOLDER, size=3),
            "Model 'org/m' cannot be loaded: its folder is empty.",
            {"size": 3},
        ),
        (
            ModelLoadFailed("Loading 'org/m' failed.", retry_after=4.0),
            "Loading 'org/m' failed.",
            {},
        ),
        (
            QueueFull("half \ud800", retry_after=1.0, text="\x1b"),
            r"Model 'org/m' cannot be loaded: half \ud800",
            {"text": r"\x1b"},
        ),
    ],
)
def test_the_model_and_the_file_are_named_without_a_path(
    error: OmlxdError, message: str, facts: dict[str, object]
) -> None:
    """T61"""
    shown = without_paths(error, a_model("org/m"))
    assert (type(shown), shown.message, shown.details) == (type(error), message, facts)
    assert shown.retry_after == error.retry_after
