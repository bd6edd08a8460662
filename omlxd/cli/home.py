"""Where the daemon that a command means keeps its files."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omlxd.config.paths import Paths
    from omlxd.service.definition import Written


def daemon_paths(home: str | None, environ: Mapping[str, str]) -> "Paths":
    """By ``--home``, else OMLXD_HOME, else as the installed service has it, else the usual places.

    Raises ConfigError for a home (``~``) of nobody.
    """
    from omlxd.config.paths import standard_paths

    named = home or environ.get("OMLXD_HOME") or None
    if named:
        return standard_paths(Path(named), None)
    written = _installed()
    return standard_paths(None, None) if written is None else service_paths(written, None)


def service_paths(written: "Written", config_file: Path | None) -> "Paths":
    """Where the service of this definition keeps its files, whatever this shell's XDG_* say.

    ``config_file``: another one than the definition's. Raises ConfigError as ``daemon_paths``.
    """
    from omlxd.config.paths import APP, Paths, standard_paths

    config_file = config_file or written.config_file
    if written.home is not None:
        return standard_paths(written.home, config_file)
    usual = standard_paths(None, config_file)
    cache = written.environment.get("XDG_CACHE_HOME")
    state = written.state or usual.state
    return Paths(
        config_file=usual.config_file,
        state=state,
        models=state.parent / usual.models.name,
        cache=Path(cache) / APP if cache else usual.cache,
        logs=written.logs or usual.logs,
    )


def _installed() -> "Written | None":
    import os
    import sys

    from omlxd.service.definition import installed

    return installed(sys.platform, os.geteuid(), Path.home())
