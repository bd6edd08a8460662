"""Where models are looked for."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from omlxd.errors import ConfigError

VARIABLES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")
"""Of the environment, what says where the Hugging Face cache is; a service keeps them all."""


def model_roots(
    dirs: Sequence[str] | None, own: Path, environ: Mapping[str, str]
) -> tuple[Path, ...]:
    """The configured ``dirs`` and, after them, our ``own`` folder, into which models are pulled;
    without ``dirs`` our own and Hugging Face's cache.

    Raises ConfigError for the home (``~``) of nobody.
    """
    try:
        if dirs is not None:
            named = (Path(name).expanduser().absolute() for name in dirs)
            return tuple(dict.fromkeys((*named, own)))
        return own, hub_cache(environ)
    except RuntimeError as error:
        if dirs is not None:
            raise ConfigError([f"models.dirs: {error}"]) from None
        by = {name: environ[name] for name in VARIABLES if environ.get(name)}
        raise ConfigError([f"the Hugging Face cache, by {by}: {error}"]) from None


def hub_cache(environ: Mapping[str, str]) -> Path:
    """Where huggingface_hub keeps models, by its own variables, without importing it."""
    if named := environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(named).expanduser()
    cache = environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = environ.get("HF_HOME") or f"{cache}/huggingface"
    return Path(home).expanduser() / "hub"
