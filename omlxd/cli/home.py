"""Where the daemon that a command means keeps its files."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omlxd.config.places import Places
    from omlxd.service.definition import Written


def daemon_places(home: str | None, environ: Mapping[str, str]) -> "Places":
    """By ``--home``, else OMLXD_HOME, else as the installed service has it, else the usual places.

    Raises ConfigError for a home (``~``) of nobody.
    """
    from omlxd.config.places import places

    named = home or environ.get("OMLXD_HOME") or None
    if named:
        return places(Path(named), None)
    written = _installed()
    return places(None, None) if written is None else places_of(written, None)


def places_of(written: "Written", config_file: Path | None) -> "Places":
    """Where the service of this definition keeps its files, whatever this shell's XDG_* say.

    ``config_file``: another one than the definition's. Raises ConfigError as ``daemon_places``.
    """
    from omlxd.config.places import APP, Places, places

    config_file = config_file or written.config_file
    if written.home is not None:
        return places(written.home, config_file)
    usual = places(None, config_file)
    cache = written.environment.get("XDG_CACHE_HOME")
    state = written.state or usual.state
    return Places(
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
