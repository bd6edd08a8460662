"""The same service as a systemd user unit, for Linux."""

from collections.abc import Callable
from pathlib import Path

from omlxd.errors import ServiceFailed
from omlxd.service.exits import MOST_STARTS
from omlxd.service.job import EXIT_TIMEOUT, UNIT, JobSpec, arguments, check
from omlxd.service.launchctl import Run, run_process
from omlxd.service.supervisor import JobView

DOMAIN = "systemd"
FAST_WITHIN = 300.0
"""Seconds in which systemd itself counts starts. Our own count ends slower restart loops."""
LIMIT = EXIT_TIMEOUT + 15.0
LINGER = (
    "A user unit runs while the account has a session. To start it at boot and keep it after "
    "logout: loginctl enable-linger"
)
_RUNS = frozenset({"active", "activating", "reloading", "deactivating"})


def render_unit(job: JobSpec) -> bytes:
    """The unit file. The same job gives the same bytes. Raises ServiceFailed for a bad path."""
    check(job)
    environment = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", **job.environment}
    settings = [_quoted(f"{name}={value}") for name, value in sorted(environment.items())]
    lines = [
        "[Unit]",
        "Description=omlxd, a server of local language models",
        f"StartLimitIntervalSec={FAST_WITHIN:.0f}",
        f"StartLimitBurst={MOST_STARTS}",
        "",
        "[Service]",
        "Type=exec",
        "ExecStart=" + " ".join(_quoted(part, command=True) for part in arguments(job)),
        f"WorkingDirectory={_plain(str(job.state))}",
        *(f"Environment={setting}" for setting in settings),
        "Restart=on-failure",
        "RestartSec=10",
        # As with launchd: native crashes go to a file beside the log. The daemon trims that file.
        f"StandardError=append:{_plain(str(job.stderr))}",
        f"TimeoutStopSec={EXIT_TIMEOUT:.0f}",
        "UMask=0077",
        "",
        "[Install]",
        "WantedBy=default.target",
        "",
    ]
    return "\n".join(lines).encode()


class Systemctl:
    """The only caller of ``systemctl --user``."""

    def __init__(self, path: str = "systemctl", run: Run = run_process) -> None:
        self._path = path
        self._run = run

    def call(self, *words: str) -> tuple[int | None, str]:
        return self._run((self._path, "--user", "--no-pager", *words), LIMIT)

    def require(self, *words: str) -> str:
        """Return the command's output. Raises ServiceFailed unless the exit code is 0."""
        code, text = self.call(*words)
        if code != 0:
            raise ServiceFailed(
                f"`systemctl --user {' '.join(words)}` gave {code}: {text.strip()}. "
                f"Look at: journalctl --user -u {UNIT} -n 50"
            )
        return text


def is_usable(systemctl: Systemctl, booted: Callable[[], bool]) -> bool:
    """Whether systemd runs on this machine and has a user instance for this user."""
    return booted() and systemctl.call("show", "--property=Version")[0] == 0


class SystemdUnit:
    """A ``Supervisor``. The caller writes the unit file."""

    def __init__(self, systemctl: Systemctl, folder: Path) -> None:
        """``folder``: the user's unit folder, such as ~/.config/systemd/user."""
        self._systemctl = systemctl
        self._folder = folder

    @property
    def name(self) -> str:
        return "systemd (user unit)"

    @property
    def domain(self) -> str:
        return DOMAIN

    @property
    def note(self) -> str | None:
        return LINGER

    @property
    def definition(self) -> Path:
        return self._folder / UNIT

    def view(self) -> JobView:
        text = self._systemctl.require(
            "show", UNIT, "--property=ActiveState,MainPID,ExecMainCode,ExecMainStatus"
        )
        values = dict(line.partition("=")[::2] for line in text.splitlines())
        pid = int(values.get("MainPID") or 0)
        return JobView(
            loaded=values.get("ActiveState") in _RUNS,
            pid=pid or None,
            last_exit=_ended_how(values.get("ExecMainCode"), values.get("ExecMainStatus")),
        )

    def load(self) -> None:
        self._systemctl.require("daemon-reload")
        self._systemctl.require("enable", UNIT)
        # Earlier failures count against the start limit. A person asks now, so forget them.
        self._systemctl.call("reset-failed", UNIT)
        self._systemctl.require("restart", UNIT)

    def start(self) -> None:
        self._systemctl.call("reset-failed", UNIT)
        self._systemctl.require("start", UNIT)

    def stop_process(self) -> None:
        self._systemctl.call("kill", "--signal=SIGTERM", UNIT)

    def unload(self) -> None:
        if self.view().loaded:
            self._systemctl.require("stop", UNIT)

    def disable(self) -> None:
        self._systemctl.require("disable", UNIT)

    def remove(self) -> None:
        self.unload()
        if self.definition.exists():
            self.disable()
            try:
                self.definition.unlink()
            except OSError as error:
                raise ServiceFailed(f"cannot remove {self.definition}: {error.strerror}") from error
        self._systemctl.require("daemon-reload")
        self._systemctl.call("reset-failed", UNIT)


def _ended_how(code: str | None, status: str | None) -> str | None:
    """``code``: the CLD_ number of waitid. 1 exited, 2 killed, 3 dumped; 0 has not ended yet."""
    if code == "1":
        return f"exit code {status}"
    return f"signal {status}" if code in ("2", "3") else None


def _plain(text: str) -> str:
    return text.replace("%", "%%")


def _quoted(text: str, *, command: bool = False) -> str:
    text = _plain(text).replace("\\", "\\\\").replace('"', '\\"')
    if command:
        text = text.replace("$", "$$")
    return f'"{text}"'
