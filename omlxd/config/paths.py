"""Where the daemon keeps its files: in the folders of the platform, or all in one folder."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import platformdirs

from omlxd.errors import ConfigError

APP = "omlxd"


@dataclass(frozen=True, slots=True)
class Paths:
    """Absolute folders and files; nothing is created here.

    Attributes:
        config_file: read only; may be absent.
        state: what the daemon stores by itself.
        cache: may be deleted at any time.
    """

    config_file: Path
    state: Path
    models: Path
    cache: Path
    logs: Path


def named_paths(environ: Mapping[str, str], *, home: str | None, config_file: str | None) -> Paths:
    """The paths by the flags and the environment. Raises ConfigError."""
    home = home or environ.get("OMLXD_HOME") or None
    named = config_file or environ.get("OMLXD_CONFIG") or None
    return standard_paths(Path(home) if home else None, Path(named) if named else None)


def absolute(path: Path) -> Path:
    """``path`` made absolute, with ``~`` replaced. Raises ConfigError for an unknown user."""
    try:
        return path.expanduser().absolute()
    except RuntimeError as error:
        raise ConfigError([f"{path}: {error}"]) from None


def standard_paths(home: Path | None, config_file: Path | None) -> Paths:
    """All in ``home`` when given, else where the platform has them. Raises ConfigError."""
    if home is not None:
        root = absolute(home)
        found = Paths(
            config_file=root / "config.toml",
            state=root / "state",
            models=root / "models",
            cache=root / "cache",
            logs=root / "logs",
        )
    else:
        data = Path(platformdirs.user_data_dir(APP, appauthor=False))
        found = Paths(
            config_file=Path(platformdirs.user_config_dir(APP, appauthor=False)) / "config.toml",
            state=data / "state",
            models=data / "models",
            cache=Path(platformdirs.user_cache_dir(APP, appauthor=False)),
            logs=Path(platformdirs.user_log_dir(APP, appauthor=False)),
        )
    if config_file is None:
        return found
    return replace(found, config_file=absolute(config_file))
