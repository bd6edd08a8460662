"""Where models are looked for."""

from pathlib import Path

import pytest

from omlxd.errors import ConfigError
from omlxd.library.roots import model_roots

OWN = Path("/data/models")


def test_without_wishes_our_own_folder_and_the_hub_s_cache_are_read() -> None:
    assert model_roots(None, OWN, {"HF_HOME": "/hf"}) == (OWN, Path("/hf/hub"))
    older = {"HUGGINGFACE_HUB_CACHE": "/older", "HF_HOME": "/hf"}
    assert model_roots(None, OWN, older) == (OWN, Path("/older"))
    assert model_roots(None, OWN, {"HF_HUB_CACHE": "/cache", **older}) == (OWN, Path("/cache"))


def test_our_own_folder_is_read_beside_the_configured_ones() -> None:
    """A pull puts its models there."""
    assert model_roots(("/a", "/b"), OWN, {}) == (Path("/a"), Path("/b"), OWN)
    assert model_roots((str(OWN), "/b"), OWN, {}) == (OWN, Path("/b"))
    assert model_roots((), OWN, {}) == (OWN,)


def test_the_home_of_nobody_is_a_mistake_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match=r"models\.dirs"):
        model_roots(("~nobody-at-all/models",), OWN, {})
    for variable in ("HF_HUB_CACHE", "HF_HOME"):
        with pytest.raises(ConfigError, match=f"{variable}.*'~nobody-at-all/hub'"):
            model_roots(None, OWN, {variable: "~nobody-at-all/hub"})
