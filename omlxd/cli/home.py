"""Where the daemon that a command means keeps its files."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omlxd.config.places import Places


def daemon_places(home: str | None, environ: Mapping[str, str]) -> "Places":
    """By ``--home``, else OMLXD_HOME, else as the installed service has it, else the usual places.

    Raises ConfigError for a home (``~``) of nobody.
    """
    from omlxd.config.places import places

    named = home or environ.get("OMLXD_HOME") or None
    return places(Path(named) if named else _installed_home(), None)


def _installed_home() -> Path | None:
    import os
    import sys

    from omlxd.service.definition import installed

    written = installed(sys.platform, os.geteuid(), Path.home())
    return None if written is None else written.home
