"""Assembles the configuration (flag over environment over file over default), and its example."""

import textwrap
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_origin

from omlxd.api.options import ApiOptions
from omlxd.backend.protocol import BackendOptions
from omlxd.config.options import LogOptions, ServerOptions
from omlxd.config.paths import Paths, named_paths
from omlxd.enforcer.options import GuardOptions
from omlxd.engine.options import EngineOptions
from omlxd.errors import ConfigError
from omlxd.options import Source, declarations, read_table
from omlxd.pool.options import PoolOptions
from omlxd.text.options import TextOptions
from omlxd.units import format_bytes, parse_bytes

PREFIX = "OMLXD_"
FLAGS: Mapping[str, str] = MappingProxyType(
    {
        "server.host": "--host",
        "server.port": "--port",
        "log.level": "--log-level",
        "models.dirs": "--model-dir",
    }
)
"""Option -> its flag. A variable may use the flag's name too: OMLXD_PORT."""
_OTHER_VARIABLES = frozenset({"HOME", "CONFIG", "URL", "KEY", "VENV", "PYTHON", "MLX", "ENV"})
"""Variables with the prefix that are no options: the commands and the scripts use them."""


class Origin(Enum):
    """Where the value of an option comes from. An option without an origin has its default."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class Config:
    """The options of every part: one field for each section of the file."""

    paths: Paths
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
    strange_variables: tuple[str, ...] = ()
    """Variables that look like options but set none."""


SECTIONS: Mapping[str, Any] = MappingProxyType(
    {
        f.name: f.type
        for f in fields(Config)
        if f.name not in ("paths", "origins", "strange_variables")
    }
)
"""Section name -> options class."""


def load(
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    home: str | None = None,
    config_file: str | None = None,
) -> Config:
    """The configuration. ``flags`` maps ``section.key`` to a text or a value.

    ``home`` and ``config_file`` are flags too; ``OMLXD_HOME`` and ``OMLXD_CONFIG`` replace absent
    ones. A named file must exist; the file at the usual place may be absent.

    Raises ConfigError with every mistake found.
    """
    found = named_paths(environ, home=home, config_file=config_file)
    required = bool(config_file or environ.get("OMLXD_CONFIG"))
    table, mistakes = _read_file(found.config_file, required=required)
    values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    origins: dict[str, Origin] = {}
    named, strange = variables(environ)
    # Sections that are not known whole. If the file cannot be read, that is all of them.
    unsound = set(SECTIONS) if mistakes else set()
    of_file = _sections_of_file(table, found.config_file, mistakes)
    unsound |= table.keys() - of_file.keys()
    layers = (
        (Origin.FILE, of_file),
        (Origin.ENVIRONMENT, _sections({o: environ[name] for o, name in named.items()})),
        (Origin.FLAG, _sections(flags)),
    )
    names = {
        Origin.FILE: lambda option: f"{found.config_file}: {option}",
        Origin.ENVIRONMENT: lambda option: named[option],
        Origin.FLAG: lambda option: FLAGS.get(option, option),
    }
    for origin, sections in layers:
        for section, entries in sections.items():
            if origin is Origin.FILE:
                source, base = Source.FILE, found.config_file.parent
            else:
                source, base = Source.TEXT, Path()
            read, wrong = read_table(entries, SECTIONS[section], source, base)
            if wrong:
                unsound.add(section)
            for key, _, what in (mistake.partition(": ") for mistake in wrong):
                mistakes.append(f"{names[origin](f'{section}.{key}')}: {what}")
            values[section] |= read
            origins |= {f"{section}.{key}": origin for key in read}
    parts = {}
    for section in (name for name in SECTIONS if name not in unsound):
        try:
            parts[section] = SECTIONS[section](**values[section])
        except ValueError as error:  # options that contradict each other
            mistakes.append(f"[{section}]: {error}")
    if mistakes:
        raise ConfigError(mistakes)
    return Config(found, origins=MappingProxyType(origins), strange_variables=strange, **parts)


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


def variables(environ: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Option -> the variable that sets it, and the variables with the prefix that set none.

    ``OMLXD_SERVER_PORT`` sets ``server.port``. If it is absent, ``OMLXD_PORT`` sets it.
    """
    short = {flag[2:].replace("-", "_").upper(): option for option, flag in FLAGS.items()}
    options: dict[str, str] = {}
    strange = []
    # Short names come first, so that the full names win.
    for name in sorted(environ, key=lambda name: name.removeprefix(PREFIX) not in short):
        rest = name.removeprefix(PREFIX)
        section, _, key = rest.lower().partition("_")
        if not name.startswith(PREFIX):
            continue
        if rest in short:
            options[short[rest]] = name
        elif section in SECTIONS and key:
            options[f"{section}.{key}"] = name
        elif rest not in _OTHER_VARIABLES and section != "test":
            strange.append(name)
    return options, tuple(sorted(strange))


def _sections(options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Options by their dotted name, sorted into sections."""
    sections: dict[str, dict[str, Any]] = {}
    for dotted, value in options.items():
        section, _, key = dotted.partition(".")
        sections.setdefault(section, {})[key] = value
    return sections


EXAMPLE_HEAD = """\
# The configuration of omlxd: every option with its default.
# Flags win over environment variables (OMLXD_SECTION_KEY) over this file over defaults.
# A relative path in this file is relative to the file's folder, elsewhere to the working directory.
# A commented option has no default value: what happens then is said above it.
"""


def example() -> str:
    """The text of ``config.example.toml``."""
    return EXAMPLE_HEAD + "".join(_section(name, cls) for name, cls in SECTIONS.items())


def _section(name: str, options_class: Any) -> str:
    declared = declarations(options_class)
    lines = ["", f"[{name}]"]
    for f in fields(options_class):
        lines += textwrap.wrap(f.metadata["help"], 98, initial_indent="# ", subsequent_indent="# ")
        kind = declared[f.name].kind
        default = f.default if f.default is not MISSING else None
        if get_origin(kind) in (dict, Mapping):
            lines.append(f"# [{name}.{f.name}.NAME]")
        elif default is None:
            lines.append(f"# {f.name} =")
        else:
            lines.append(f"{f.name} = {_toml(default, kind)}")
    return "\n".join(lines) + "\n"


def _toml(value: Any, kind: Any) -> str:
    if isinstance(value, Enum):
        return _toml(value.value, None)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(item, None) for item in value) + "]"
    if "bytes" in getattr(kind, "__metadata__", ()) and value:
        text = format_bytes(value)
        return f'"{text}"' if parse_bytes(text) == value else f'"{value}B"'
    return repr(value)
