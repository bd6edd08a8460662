"""Writes the example configuration: every option with its explanation and default."""

import textwrap
from collections.abc import Mapping
from dataclasses import MISSING, fields
from enum import Enum
from typing import Any, get_origin

from omlxd.config.load import SECTIONS
from omlxd.options import declarations
from omlxd.units import format_bytes, parse_bytes

HEAD = """\
# The configuration of omlxd: every option with its default.
# Flags win over environment variables (OMLXD_SECTION_KEY) over this file over defaults.
# A relative path in this file is relative to the file's folder, elsewhere to the working directory.
# A commented option has no default value: what happens then is said above it.
"""


def example() -> str:
    """The text of ``config.example.toml``."""
    return HEAD + "".join(_section(name, cls) for name, cls in SECTIONS.items())


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
