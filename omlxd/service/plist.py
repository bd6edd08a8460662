"""Renders the launchd job from its template with plistlib."""

import plistlib
from importlib.resources import files
from pathlib import Path
from typing import Any

from omlxd.errors import ServiceFailed
from omlxd.service.job import JobSpec, arguments, check

AGENT_ONLY = ("LimitLoadToSessionType", "SoftResourceLimits")
DAEMON_ONLY = ("UserName",)


def template() -> bytes:
    """The commented template: from the wheel, or from the clone of an editable installation.

    Raises ServiceFailed when neither has it.
    """
    inside = files("omlxd.service").joinpath("launchd", "job.plist")
    clone = Path(__file__).parents[2] / "launchd" / "job.plist"
    for place in (inside, clone):
        if place.is_file():
            return place.read_bytes()
    raise ServiceFailed("the template launchd/job.plist is missing; install omlxd again")


def render(job: JobSpec, label: str, source: bytes) -> bytes:
    """The property list of ``job``: an agent, or a daemon when it has an account.

    The same job gives the same bytes. Raises ServiceFailed for a path launchd cannot use.
    """
    check(job)
    values = {
        "@LABEL@": label,
        "@PYTHON@": job.interpreter,
        "@CONFIG@": str(job.config_file),
        "@STATE@": str(job.state),
        "@STDOUT@": str(job.stdout),
        "@STDERR@": str(job.stderr),
    }
    account = job.account
    if account is not None:
        values |= {"@USER@": account.name, "@USER_HOME@": str(account.home)}
    keys: dict[str, Any] = plistlib.loads(source)
    for name in DAEMON_ONLY if account is None else AGENT_ONLY:
        del keys[name]
    environment = keys["EnvironmentVariables"]
    if account is None:
        del environment["HOME"]
    environment.update(job.environment)
    result = _fill(keys, values)
    result["ProgramArguments"] += arguments(job)[len(result["ProgramArguments"]) :]
    return plistlib.dumps(result, sort_keys=False)


def _fill(value: Any, values: dict[str, str]) -> Any:
    """Replaces whole strings only, so that no value is ever read as a placeholder."""
    if isinstance(value, dict):
        return {key: _fill(entry, values) for key, entry in value.items()}
    if isinstance(value, list):
        return [_fill(entry, values) for entry in value]
    return values.get(value, value) if isinstance(value, str) else value
