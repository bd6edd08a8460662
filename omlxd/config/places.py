"""Where the daemon keeps its files: the platform's own places, or one folder for all."""

from dataclasses import dataclass
from pathlib import Path

import platformdirs

APP = "omlxd"


@dataclass(frozen=True, slots=True)
class Places:
    """Absolute folders and files; nothing is created here.

    Attributes:
        config_file: read only; may be absent.
        state: what the daemon remembers by itself.
        cache: may be deleted at any time.
    """

    config_file: Path
    state: Path
    models: Path
    cache: Path
    logs: Path


def places(home: Path | None, config_file: Path | None) -> Places:
    """All under ``home`` when given, else as the platform has them."""
    if home is not None:
        root = home.expanduser().absolute()
        found = Places(
            config_file=root / "config.toml",
            state=root / "state",
            models=root / "models",
            cache=root / "cache",
            logs=root / "logs",
        )
    else:
        data = Path(platformdirs.user_data_dir(APP, appauthor=False))
        found = Places(
            config_file=Path(platformdirs.user_config_dir(APP, appauthor=False)) / "config.toml",
            state=data / "state",
            models=data / "models",
            cache=Path(platformdirs.user_cache_dir(APP, appauthor=False)),
            logs=Path(platformdirs.user_log_dir(APP, appauthor=False)),
        )
    if config_file is None:
        return found
    return Places(
        config_file=config_file.expanduser().absolute(),
        state=found.state,
        models=found.models,
        cache=found.cache,
        logs=found.logs,
    )
