"""The guard's policy in force: a flag wins over the environment, then API, file and default."""

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any

import structlog

from omlxd.enforcer.options import GuardOptions
from omlxd.errors import InvalidRequest, SettingLocked
from omlxd.options import BadValue, Declaration, declarations, read_value
from omlxd.policy.tiers import GuardPolicy, Tier, mistakes
from omlxd.store import StateFile
from omlxd.units import GiB

log = structlog.get_logger(__name__)


FILE = "guard.json"


class From(Enum):
    """Where a setting's value comes from."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    API = "api"
    FILE = "file"
    DEFAULT = "default"


FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "enabled": "enabled",
        "enforce": "enforce",
        "tier": "tier",
        "custom_ceiling_gb": "custom_ceiling_bytes",
        "soft_threshold": "soft_threshold",
        "hard_threshold": "hard_threshold",
    }
)
"""Key of the API -> field of GuardPolicy. One GB is one GiB here."""
KEYS: Mapping[str, str] = MappingProxyType({field: key for key, field in FIELDS.items()})
"""Field of GuardPolicy -> key of the API."""
_DECLARED = {
    **declarations(GuardOptions),
    "custom_ceiling_gb": Declaration(float, limits={"above": 0}),
}
_MARKS = ("soft_threshold", "hard_threshold")
_MAY_CLASH = (("soft_threshold",), ("hard_threshold",), _MARKS, ("tier",), (*_MARKS, "tier"))
"""Stored values may contradict what a flag, the environment or the file says now. Then the first
group that solves the conflict is left out; all other stored values stay in force."""


@dataclass(frozen=True, slots=True)
class PolicyInForce:
    policy: GuardPolicy
    origins: Mapping[str, From]
    """By key of the API."""
    dormant: Mapping[str, Any]
    """Values that were set over the API and are not in force, as they were set."""


def guard_settings(
    configured: GuardPolicy, origins: Mapping[str, str], folder: Path
) -> "GuardSettings":
    """The settings, with the values that were set over the API before the restart.

    ``origins``: by name of the option (``guard.tier``); options that have their default are absent.
    ``folder``: the state folder.
    """
    file = StateFile(folder, FILE)
    stored = file.read()
    if file.trouble is not None:
        log.error("guard_settings_lost", reason=file.trouble)
    # The ceiling is a size in the configuration, and a number of GB in the API.
    names = {key: f"guard.{key}" for key in FIELDS} | {"custom_ceiling_gb": "guard.custom_ceiling"}
    by_key = {key: From(origins[name]) for key, name in names.items() if name in origins}
    return GuardSettings(configured, by_key, stored, store=file.write)


class GuardSettings:
    """Owns the values that were set over the API. They survive a restart."""

    def __init__(
        self,
        configured: GuardPolicy,
        origins: Mapping[str, From],
        stored: Mapping[str, Any],
        store: Callable[[Mapping[str, Any]], None],
    ) -> None:
        """``origins`` is by key of the API; a key that it lacks has its default.

        ``stored`` is the last argument of ``store``. An entry that cannot be read any more, or that
        contradicts the configuration, is not in force, and ``dropped`` has a sentence about it.
        It stays stored until its key is set or reset.
        """
        self._configured = configured
        self._origins = origins
        self._store = store
        self._set: dict[str, Any] = {}
        """Typed values, including those that are not in force."""
        self._unread: dict[str, Any] = {}
        """Values that could not be read, as they were stored."""
        self.dropped: tuple[str, ...] = self._restore(stored)
        self._out = self._clashing(self._set)
        self._in_force = self._merge(self._set, self._out)

    @property
    def in_force(self) -> PolicyInForce:
        return self._in_force

    def change(self, body: Mapping[str, Any]) -> PolicyInForce:
        """Set the given keys, all or none; None returns a key to the file or the default.

        Marks that were not in force come back when this change makes them valid. A tier that was
        not in force is forgotten: only a change of the tier itself may lead to a bolder tier.

        Raises InvalidRequest naming the first wrong key, SettingLocked for a key that a flag
        or an environment variable has fixed.
        """
        wanted = {key: _read(key, value) for key, value in body.items()}
        for key, value in wanted.items():
            fixed = self._fixed_by(key)
            if fixed is not None and value is not None:
                raise SettingLocked(
                    f"'{key}' is fixed by {_by(fixed, key)}; change it there and restart.",
                    param=key,
                )
        merged = {**self._set, **wanted}
        kept = {key: value for key, value in merged.items() if value is not None}
        out = self._clashing(kept)
        if "tier" in self._out - out - wanted.keys():
            kept = _without(kept, ("tier",))
            out = self._clashing(kept)
        if any(key in wanted or key not in self._out for key in out):
            # Values that were not in force and contradict this call are forgotten.
            kept, out = _without(kept, self._out - wanted.keys()), frozenset()
        in_force = self._merge(kept, out)
        changed = {FIELDS[key] for key, value in wanted.items() if value is not None}
        self._refuse_nonsense(in_force.policy, changed)
        unread = _without(self._unread, wanted)
        self._store(unread | {key: _plain(key, value) for key, value in kept.items()})
        for key in sorted(self._out - out - wanted.keys()):
            event = "guard_setting_revived" if key in kept else "guard_setting_forgotten"
            log.warning(event, key=key, value=_plain(key, self._set[key]))
        self._set, self._out, self._unread, self._in_force = kept, out, unread, in_force
        return in_force

    def _refuse_nonsense(self, policy: GuardPolicy, changed: set[str]) -> None:
        wrong = mistakes(policy, changed)
        if wrong:
            text = " ".join(mistake.text for mistake in wrong)
            raise InvalidRequest(text, param=KEYS[wrong[0].name])

    def _fixed_by(self, key: str) -> From | None:
        origin = self._origins.get(key)
        return origin if origin in (From.FLAG, From.ENVIRONMENT) else None

    def _merge(self, api: Mapping[str, Any], out: Collection[str] = ()) -> PolicyInForce:
        origins = {key: self._origins.get(key, From.DEFAULT) for key in FIELDS}
        changes: dict[str, Any] = {}
        for key, value in _without(api, out).items():
            if self._fixed_by(key) is None:
                changes[FIELDS[key]] = value
                origins[key] = From.API
        policy = replace(self._configured, **changes)
        dormant = {key: _plain(key, api[key]) for key in out}
        return PolicyInForce(policy, MappingProxyType(origins), MappingProxyType(dormant))

    def _restore(self, stored: Mapping[str, Any]) -> tuple[str, ...]:
        dropped = []
        for key, value in stored.items():
            try:
                typed = _read(key, value)
            except InvalidRequest as error:
                if _is_storable({key: value}):
                    self._unread[key] = value
                dropped.append(error.message)
                continue
            if typed is not None:
                self._set[key] = typed
        why = " ".join(mistake.text for mistake in mistakes(self._merge(self._set).policy))
        for key in sorted(self._clashing(self._set)):
            value = _plain(key, self._set[key])
            dropped.append(f"'{key}', set to {value!r} over the API, is not in force: {why}")
        return tuple(dropped)

    def _clashing(self, api: Mapping[str, Any]) -> frozenset[str]:
        """The fewest keys of ``api`` that must be left out for the rest to make sense."""
        left_out: frozenset[str] = frozenset()
        for keys in ((), *_MAY_CLASH):
            left_out = frozenset(keys) & api.keys()
            if not mistakes(self._merge(api, left_out).policy):
                break
        return left_out


def _is_storable(value: Any) -> bool:
    """Whether ``value`` can be written. Some JSON can only be read: NaN, half a character."""
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return False
    return True


def _without(values: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


def _read(key: str, value: Any) -> Any:
    """The typed value of one key of the API. Raises InvalidRequest naming the key."""
    if key not in FIELDS:
        known = ", ".join(FIELDS)
        raise InvalidRequest(f"Unknown key '{key}'; the keys are {known}.", param=key)
    if value is None:
        return None
    try:
        result = read_value(value, _DECLARED[key])
        return _ceiling(result) if key == "custom_ceiling_gb" else result
    except BadValue as bad:
        raise InvalidRequest(f"'{key}' {bad.rule}, or null.", param=key) from None


def _ceiling(gb: float) -> int:
    size = gb * GiB
    if not math.isfinite(size) or size < 1:
        raise BadValue("must be finite and at least one byte")
    return round(size)


def _plain(key: str, value: Any) -> Any:
    """``value`` in the form that the API takes; the store keeps this form."""
    if key == "custom_ceiling_gb":
        return value / GiB
    return value.value if isinstance(value, Tier) else value


def _by(origin: From, key: str) -> str:
    option = "custom_ceiling" if key == "custom_ceiling_gb" else key
    if origin is From.ENVIRONMENT:
        return f"the environment variable OMLXD_GUARD_{option.upper()}"
    return f"the flag for guard.{option}"
