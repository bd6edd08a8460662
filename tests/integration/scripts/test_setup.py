"""The environment of the clone, whose making was broken off."""

import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
PYTHON = """#!/bin/sh
case "$*" in
  *" venv "*) echo venv >>made; eval "$AT_VENV"; mkdir -p .venv/bin; cp python .venv/bin ;;
  *"pip install"*) echo pip >>made; eval "$AT_PIP" ;;
esac
"""
"""Stands for Python: notes what it is asked to make, and does what the test wants meanwhile."""
BREAK_OFF = "kill -9 0"  # the process group, as nothing can be tidied up


@dataclass(frozen=True)
class Clone:
    folder: Path

    def prepare(self, *, mlx: str = "cpu", **environ: str) -> tuple[int, list[str]]:
        """The exit code, and what was made."""
        made = self.folder / "made"
        made.write_text("")
        done = subprocess.run(
            ["bash", "-c", "set -euo pipefail; . scripts/env.sh; prepare dev"],
            cwd=self.folder,
            env={
                "PATH": f"{self.folder}{os.pathsep}{os.environ['PATH']}",
                "OMLXD_PYTHON": str(self.folder / "python"),
                "OMLXD_MLX": mlx,
                **environ,
            },
            start_new_session=True,
            capture_output=True,
            check=False,
        )
        return done.returncode, made.read_text().split()


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    (tmp_path / "scripts").mkdir()
    shutil.copy(REPOSITORY / "scripts" / "env.sh", tmp_path / "scripts")
    (tmp_path / "pyproject.toml").touch()
    for name, text in {"python": PYTHON, "uname": "#!/bin/sh\necho Linux\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    clone = Clone(tmp_path)
    assert clone.prepare() == (0, ["venv", "pip"])
    assert clone.prepare() == (0, [])
    return clone


def test_what_pip_did_not_finish_is_installed_again(clone: Clone) -> None:
    """pip had removed the project to install it anew: once with other extras, once the same."""
    stamp = clone.folder / ".venv" / ".omlxd-stamp"
    key = stamp.read_text().splitlines()[0]
    stamp.write_text(f"{key}\nextra other\n")
    assert clone.prepare(AT_PIP=BREAK_OFF) == (-signal.SIGKILL, ["pip"])
    assert clone.prepare(AT_PIP="exit 1") == (1, ["pip"])
    stamped = stamp.read_text()
    assert key not in stamped
    assert clone.prepare() == (0, ["pip"])
    assert clone.prepare() == (0, [])


def test_an_environment_that_was_half_cleared_is_made_again(clone: Clone) -> None:
    """For another build of MLX; then the first one is asked for again."""
    library = clone.folder / ".venv" / "lib"
    library.mkdir()
    assert clone.prepare(mlx="cuda", AT_VENV=BREAK_OFF) == (-signal.SIGKILL, ["venv"])
    assert not library.exists()
    assert clone.prepare() == (0, ["venv", "pip"])
    assert clone.prepare() == (0, [])
