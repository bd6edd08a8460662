"""Checks whether the Python that runs this process will still exist at the next login."""

import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

PROJECT_MARKS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
PROTECTED = ("Desktop", "Documents", "Downloads")
"""Folders of a user's home that background jobs on macOS may not read."""

_CELLAR = re.compile(r"/Cellar/([^/]+)/[^/]+/")
_HOMEBREW_OWN = re.compile(r"/(?:Cellar|opt)/omlxd/")
_UV_CACHE = re.compile(r"/(?:archive|environments|builds)-v\d+/")


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The facts about a Python, before it is checked.

    Attributes:
        executable: absolute, symbolic links unresolved.
        prefix: the environment's folder; equals ``base`` outside a virtual environment.
        base: the installation on which the environment is built.
        machine: the processor for which the interpreter was built.
        project: the source project (a clone) that contains the environment or omlxd itself.
        throwaway: folders whose content other tools delete (caches, temporary folders).
        resolved: executable and environment with links resolved. Only the check of the volume uses
            them; the other checks use the link, since it survives upgrades.
    """

    executable: str
    exists: bool
    prefix: str
    base: str
    system: str
    machine: str
    user_home: str
    project: str | None
    throwaway: tuple[str, ...]
    resolved: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a service must not be built on this Python, and what to do instead.

    ``final``: not even ``--force`` allows it.
    """

    text: str
    final: bool


def current_interpreter(environ: Mapping[str, str]) -> Interpreter:
    """The running interpreter."""
    prefix = Path(sys.prefix)
    home = Path.home()
    caches = [
        environ.get("UV_CACHE_DIR") or "",
        str(home / ".cache/uv"),
        str(home / "Library/Caches"),
        str(home / ".cache/pipx"),
        str(home / "Library/Application Support/pipx/.cache"),
        str(home / ".local/pipx/.cache"),
        environ.get("TMPDIR") or "",
        *("/tmp", "/var/tmp", "/private/tmp", "/private/var/folders", "/var/folders"),
    ]
    return Interpreter(
        executable=sys.executable,
        exists=bool(sys.executable) and os.access(sys.executable, os.X_OK),
        prefix=str(prefix),
        base=sys.base_prefix,
        system=platform.system(),
        machine=platform.machine(),
        user_home=str(home),
        project=_project_of(prefix, Path(__file__).parents[2]),
        throwaway=tuple(folder.rstrip("/") for folder in caches if folder.rstrip("/")),
        resolved=tuple(os.path.realpath(path) for path in (sys.executable, sys.prefix)),
    )


def _project_of(prefix: Path, package_root: Path) -> str | None:
    inside = sys.prefix != sys.base_prefix
    if inside and any((prefix.parent / mark).exists() for mark in PROJECT_MARKS):
        return str(prefix.parent)
    # An editable installation runs from the clone; its environment may be anywhere.
    if package_root.name not in ("site-packages", "dist-packages"):
        return str(package_root)
    return None


def problems(python: Interpreter) -> tuple[Problem, ...]:
    """All problems of this interpreter, the final ones first."""
    found = [
        _unusable(python),
        _homebrew_service(python),
        _vanishing(python),
        _cellar(python),
        _external(python),
        _protected(python),
        _project(python),
    ]
    return tuple(sorted((o for o in found if o is not None), key=lambda o: not o.final))


def _unusable(python: Interpreter) -> Problem | None:
    if not python.exists or not python.executable.startswith("/"):
        return Problem(
            f"the running Python has no usable path ({python.executable!r}); "
            "start omlxd with an absolute interpreter",
            final=True,
        )
    if python.system == "Darwin" and python.machine != "arm64":
        return Problem(
            f"this Python is built for {python.machine} and runs under Rosetta, where there is no "
            "MLX; install an arm64 Python (uv python install 3.12)",
            final=True,
        )
    return None


def _homebrew_service(python: Interpreter) -> Problem | None:
    if _HOMEBREW_OWN.search(python.executable) is None:
        return None
    return Problem(
        "this omlxd was installed by Homebrew, which manages its service itself: "
        "use `brew services start omlxd`; two services would fight for one port",
        final=True,
    )


def _vanishing(python: Interpreter) -> Problem | None:
    inside = next((f for f in python.throwaway if _within(python.executable, f)), None)
    if inside is None and _UV_CACHE.search(python.executable) is None:
        return None
    return Problem(
        f"this Python lives in a folder that is cleaned by others ({inside or 'the cache of uv'}), "
        "so the service would stop working one day (uvx and pipx run build such environments); "
        "install omlxd for good: uv tool install omlxd",
        final=False,
    )


def _cellar(python: Interpreter) -> Problem | None:
    for path in (python.executable, python.prefix, python.base):
        match = _CELLAR.search(path + "/")
        if match is not None:
            return Problem(
                f"{path} is a version folder of Homebrew and vanishes with the next upgrade of "
                f"{match[1]}; use an environment built on the stable path (opt/{match[1]}), "
                "or better on a Python of uv or python.org",
                final=False,
            )
    return None


def _external(python: Interpreter) -> Problem | None:
    for path in (python.executable, python.base, *python.resolved):
        if _within(path, "/Volumes"):
            return Problem(
                f"{path} is on an external volume, which may be absent at login and which macOS "
                "keeps jobs from reading; install omlxd on the internal disk",
                final=True,
            )
    return None


def _protected(python: Interpreter) -> Problem | None:
    for name in PROTECTED if python.system == "Darwin" else ():
        if _within(python.executable, f"{python.user_home}/{name}"):
            return Problem(
                f"this Python lies in {python.user_home}/{name}, which macOS keeps background "
                "jobs out of; install omlxd elsewhere: uv tool install omlxd",
                final=False,
            )
    return None


def _project(python: Interpreter) -> Problem | None:
    if python.project is None:
        return None
    return Problem(
        f"omlxd runs from the source project {python.project} and changes with it; "
        "install it for good (scripts/install, or uv tool install .), or use --force",
        final=False,
    )


def _within(path: str, folder: str) -> bool:
    return PurePosixPath(path).is_relative_to(PurePosixPath(folder))
