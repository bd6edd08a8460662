"""The service of someone who has only the clone, and of someone who has only the wheel."""

import os
import plistlib
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from omlxd.instance import running
from omlxd.service.job import LABEL
from tests.integration.service.conftest import FREE_PORT, REPOSITORY, SUPPORT, UID, stand_in

AS_ON_A_MAC = f"""
import os, time
from pathlib import Path
if "LAUNCHCTL_DIR" in os.environ:
    try:
        from omlxd.service import launchctl, machine, supervisor, systemd
    except ImportError:  # pip runs before there is an omlxd
        pass
    else:
        machine.this_machine = lambda: machine.Machine(
            platform="darwin",
            uid={UID},
            user_home=Path.home(),
            launchctl=launchctl.Launchctl({str(SUPPORT / "launchctl")!r}),
            systemctl=systemd.Systemctl(),
            systemd_booted=lambda: False,
            clock=supervisor.Clock(time.monotonic, time.sleep),
        )
"""
"""Read by each interpreter of the environment when it starts (sitecustomize)."""


@dataclass(frozen=True)
class Trial:
    """An account with an environment of its own, whose dependencies are those of the tests."""

    folder: Path

    @property
    def home(self) -> Path:
        return self.folder / "data"

    @property
    def env(self) -> Path:
        return self.folder / "env"

    @property
    def python(self) -> Path:
        return self.env / "bin" / "python"

    @property
    def plist(self) -> Path:
        return self.folder / "user" / "Library" / "LaunchAgents" / f"{LABEL}.plist"

    def make(self) -> None:
        venv.create(self.env, with_pip=False, symlinks=True)
        packages = next(self.env.glob("lib/python*/site-packages"))
        (packages / "of_the_tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
        (packages / "sitecustomize.py").write_text(AS_ON_A_MAC)
        for folder in ("bin", "user", "launchd", "data"):
            (self.folder / folder).mkdir()
        uname = self.folder / "bin" / "uname"
        uname.write_text("#!/bin/sh\necho Darwin\n")
        uname.chmod(0o755)
        (self.folder / "launchd" / "scenario.json").write_text('{"exit_scale": 1.0}')
        (self.home / "config.toml").write_text(FREE_PORT)

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        environ = {
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.folder / "user"),
            "OMLXD_ENV": str(self.env),
            "LAUNCHCTL_DIR": str(self.folder / "launchd"),
            # The packages are there; nothing is asked of the network.
            "PIP_NO_INDEX": "1",
            "PIP_NO_DEPS": "1",
            "PIP_NO_BUILD_ISOLATION": "0",
            "PIP_IGNORE_INSTALLED": "1",
        }
        return subprocess.run(
            [str(word) for word in command],
            env=environ,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    trial = Trial(tmp_path)
    trial.make()
    yield trial
    stand_in(tmp_path / "launchd").shut_down()


def test_the_clone_alone_installs_and_uninstalls_the_service(trial: Trial) -> None:
    """--force, since environments in the folder for temporary files are refused."""
    home = ("--home", trial.home)
    refused = trial.run(REPOSITORY / "scripts" / "install", *home)
    assert refused.returncode == 1
    assert "cleaned by others" in refused.stderr
    assert not trial.plist.exists()
    done = trial.run(REPOSITORY / "scripts" / "install", *home, "--force")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "omlxd is installed and healthy" in done.stdout
    keys = plistlib.loads(trial.plist.read_bytes())
    assert keys["ProgramArguments"][0] == str(trial.python)
    record = running(trial.home / "state")
    assert record is not None
    health = httpx.get(f"{record.url}/health", timeout=60).json()
    assert health["instance_id"] == record.instance_id
    environ = psutil.Process(record.pid).environ()
    assert "PYTHONPATH" not in environ, "it runs what is installed, not the clone"
    gone = trial.run(REPOSITORY / "scripts" / "uninstall", *home)
    assert gone.returncode == 0, gone.stdout + gone.stderr
    assert not trial.env.exists()
    assert not trial.plist.exists()
    assert running(trial.home / "state") is None
    assert (trial.home / "config.toml").read_text() == FREE_PORT


def test_relative_paths_among_the_arguments_are_those_of_the_caller(tmp_path: Path) -> None:
    python, uname, said = (
        tmp_path / "env" / "bin" / "python",
        tmp_path / "uname",
        tmp_path / "said",
    )
    python.parent.mkdir(parents=True)
    (tmp_path / "env" / "pyvenv.cfg").touch()
    python.write_text(f'#!/bin/sh\ncase "$*" in *omlxd*) echo "$PWD: $*" >>"{said}" ;; esac\n')
    uname.write_text("#!/bin/sh\necho Darwin\n")
    for file in (python, uname):
        file.chmod(0o755)
    here = tmp_path / "here"
    here.mkdir()
    environ = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "OMLXD_ENV": str(tmp_path / "env"),
    }
    for script in ("install", "uninstall"):
        subprocess.run(
            [REPOSITORY / "scripts" / script, "--home", "./data"], cwd=here, env=environ, check=True
        )
    assert said.read_text().splitlines() == [
        f"{here}: -P -m omlxd service install --restart --home ./data",
        f"{here}: -P -m omlxd service uninstall --home ./data",
    ]


@pytest.mark.skipif(sys.platform == "darwin", reason="there is launchd here")
@pytest.mark.skipif(Path("/run/systemd/system").is_dir(), reason="there is systemd here")
def test_without_launchd_and_systemd_it_says_so_before_anything_is_made(trial: Trial) -> None:
    (trial.folder / "bin" / "uname").unlink()
    refused = trial.run(REPOSITORY / "scripts" / "install")
    assert refused.returncode == 1
    assert "services need launchd (macOS) or systemd" in refused.stderr


def test_the_wheel_alone_renders_the_definition(trial: Trial) -> None:
    """No clone beside it: the template comes out of the wheel."""
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", trial.folder / "dist"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = (trial.folder / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "omlxd/service/launchd/job.plist" in names
    assert not [name for name in names if name.startswith(("tests/", "scripts/", "launchd/"))]
    pip = trial.run(trial.python, "-m", "pip", "install", "-q", wheel)
    assert pip.returncode == 0, pip.stderr
    where = trial.run(trial.python, "-c", "import omlxd; print(omlxd.__file__)")
    assert where.stdout.startswith(str(trial.env))
    shown = trial.run(
        trial.env / "bin" / "omlxd", "service", "install", "--dry-run", "--home", trial.home
    )
    assert shown.returncode == 0, shown.stderr
    keys = plistlib.loads(shown.stdout.encode())
    assert keys["Label"] == LABEL
    assert keys["ProgramArguments"][:4] == [str(trial.python), "-m", "omlxd", "serve"]
    assert str(REPOSITORY) not in shown.stdout
    assert not trial.plist.exists()
