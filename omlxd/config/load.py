"""Assembles the configuration: flag over environment over file over default."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any

from omlxd.api.options import ApiOptions
from omlxd.backend.options import BackendOptions
from omlxd.config.options import LogOptions, ServerOptions
from omlxd.config.places import Places, named_places
from omlxd.config.values import read_table
from omlxd.enforcer.options import GuardOptions
from omlxd.engine.options import EngineOptions
from omlxd.errors import ConfigError
from omlxd.pool.options import PoolOptions
from omlxd.text.options import TextOptions

PREFIX = "OMLXD_"


class Origin(Enum):
    """Where an option's value comes from; what is not listed is a default."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class Config:
    """The options of every part. One field a section of the file."""

    places: Places
    server: ServerOptions = field(default_factory=ServerOptions)
    log: LogOptions = field(default_factory=LogOptions)
    api: ApiOptions = field(default_factory=ApiOptions)
    models: PoolOptions = field(default_factory=PoolOptions)
    engine: EngineOptions = field(default_factory=EngineOptions)
    backend: BackendOptions = field(default_factory=BackendOptions)
    text: TextOptions = field(default_factory=TextOptions)
    guard: GuardOptions = field(default_factory=GuardOptions)
    origins: Mapping[str, Origin] = field(default_factory=lambda: MappingProxyType({}))
    """``section.key`` -> where its value comes from."""


SECTIONS: Mapping[str, Any] = MappingProxyType(
    {f.name: f.type for f in fields(Config) if f.name not in ("places", "origins")}
)
"""Section name -> options class."""


def load(
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    home: str | None = None,
    config_file: str | None = None,
) -> Config:
    """The configuration. ``flags`` maps ``section.key`` to a text or value.

    ``home`` and ``config_file`` are flags too; ``OMLXD_HOME`` and ``OMLXD_CONFIG`` stand in
    for them. A file that was named must exist; the one at its usual place may be absent.

    Raises ConfigError with every mistake found.
    """
    found = named_places(environ, home=home, config_file=config_file)
    required = bool(config_file or environ.get("OMLXD_CONFIG"))
    table, mistakes = _read_file(found.config_file, required=required)
    values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    origins: dict[str, Origin] = {}
    layers = (
        (Origin.FILE, _sections_of_file(table, found.config_file, mistakes)),
        (Origin.ENVIRONMENT, _sections_of_environment(environ)),
        (Origin.FLAG, _sections_of_flags(flags)),
    )
    for origin, sections in layers:
        for section, entries in sections.items():
            read, wrong = read_table(entries, SECTIONS[section], text=origin is not Origin.FILE)
            mistakes += [_located(origin, section, mistake, found) for mistake in wrong]
            values[section] |= read
            origins |= {f"{section}.{key}": origin for key in read}
    if mistakes:
        raise ConfigError(mistakes)
    return _build(values, found, origins)


def _build(
    values: Mapping[str, Mapping[str, Any]], found: Places, origins: Mapping[str, Origin]
) -> Config:
    """The options of each section; a class may refuse a combination with a ValueError."""
    parts, mistakes = {}, []
    for section, options_class in SECTIONS.items():
        try:
            parts[section] = options_class(**values[section])
        except ValueError as error:
            mistakes.append(f"[{section}]: {error}")
    if mistakes:
        raise ConfigError(mistakes)
    return Config(places=found, origins=MappingProxyType(dict(origins)), **parts)


def _read_file(path: Path, *, required: bool) -> tuple[Mapping[str, Any], list[str]]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8")), []
    except FileNotFoundError:
        return {}, [f"{path}: no such file"] if required else []
    except tomllib.TOMLDecodeError as error:
        return {}, [f"{path}: {error}"]
    except (OSError, ValueError, RecursionError) as error:
        return {}, [f"{path}: cannot be read: {error}"]


def _sections_of_file(
    table: Mapping[str, Any], path: Path, mistakes: list[str]
) -> dict[str, Mapping[str, Any]]:
    sections: dict[str, Mapping[str, Any]] = {}
    for name, content in table.items():
        if name not in SECTIONS:
            mistakes.append(
                f"{path}: {name}: unknown section; known are {', '.join(sorted(SECTIONS))}"
            )
        elif not isinstance(content, Mapping):
            mistakes.append(f"{path}: {name}: must be a section: write [{name}]")
        else:
            sections[name] = content
    return sections


def _sections_of_environment(
    environ: Mapping[str, str],
) -> dict[str, dict[str, str]]:
    """``OMLXD_SERVER_PORT`` is ``server.port``; other names of the prefix are not options."""
    sections: dict[str, dict[str, str]] = {}
    for name, value in environ.items():
        section, _, key = name.removeprefix(PREFIX).lower().partition("_")
        if name.startswith(PREFIX) and section in SECTIONS and key:
            sections.setdefault(section, {})[key] = value
    return sections


def _sections_of_flags(flags: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    sections: dict[str, dict[str, Any]] = {}
    for dotted, value in flags.items():
        section, _, key = dotted.partition(".")
        sections.setdefault(section, {})[key] = value
    return sections


def _located(origin: Origin, section: str, mistake: str, found: Places) -> str:
    key, _, text = mistake.partition(": ")
    match origin:
        case Origin.FILE:
            return f"{found.config_file}: {section}.{key}: {text}"
        case Origin.ENVIRONMENT:
            return f"{PREFIX}{section.upper()}_{key.upper()}: {text}"
        case Origin.FLAG:
            return f"--{key.replace('_', '-')}: {text}"
