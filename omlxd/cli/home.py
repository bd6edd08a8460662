"""Where the daemon that a command means keeps its files."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omlxd.config.paths import Paths
    from omlxd.service.definition import Definition


def daemon_paths(home: str | None, environ: Mapping[str, str]) -> "Paths":
    """By ``--home``, else OMLXD_HOME, else as the installed service has it, else the usual places.

    Raises ConfigError for a home (``~``) of nobody.
    """
    from omlxd.config.paths import standard_paths

    named = home or environ.get("OMLXD_HOME") or None
    if named:
        return standard_paths(Path(named), None)
    definition = _installed()
    return standard_paths(None, None) if definition is None else service_paths(definition, None)


def service_paths(definition: "Definition", config_file: Path | None) -> "Paths":
    """Where the service of this definition keeps its files, whatever this shell's XDG_* say.

    ``config_file``: another one than in the definition. Raises ConfigError as ``daemon_paths``.
    """
    from omlxd.config.paths import APP, Paths, standard_paths

    config_file = config_file or definition.config_file
    if definition.home is not None:
        return standard_paths(definition.home, config_file)
    usual = standard_paths(None, config_file)
    cache = definition.environment.get("XDG_CACHE_HOME")
    state = definition.state or usual.state
    return Paths(
        config_file=usual.config_file,
        state=state,
        models=state.parent / usual.models.name,
        cache=Path(cache) / APP if cache else usual.cache,
        logs=definition.logs or usual.logs,
    )


def _installed() -> "Definition | None":
    import os
    import sys

    from omlxd.service.definition import installed_definition

    return installed_definition(sys.platform, os.geteuid(), Path.home())
