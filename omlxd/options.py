"""Options: how a part declares them, and the only check of their values.

Options are frozen dataclasses whose fields explain themselves. The configuration, the settings of
models over the API and those of the guard are all checked here; the callers write the errors.
"""

import json
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from omlxd.units import parse_bytes

Bytes = Annotated[int, "bytes"]
"""A size. The configuration takes texts such as ``"12GB"``; the only number it takes is 0."""
Seconds = Annotated[float, "seconds"]
FilePath = Annotated[str, "path"]
"""A file or folder. A relative path is relative to the folder of the configuration file that has
it, else to the working directory. A ``~`` stays: the daemon may run under another account."""

TRUE = frozenset({"1", "true", "yes", "on"})
FALSE = frozenset({"0", "false", "no", "off"})


def option(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    check: Callable[[Any], None] | None = None,
) -> Any:
    """A dataclass field with its explanation and its bounds (``low <= value <= high``).

    Allowed annotations: ``bool``, ``int``, ``float``, ``str``, ``Bytes``, ``Seconds``,
    ``FilePath``, an ``Enum``, ``tuple[str, ...]`` and ``tuple[FilePath, ...]``,
    ``Mapping[str, Any]``, ``Mapping[str, Table]`` of another options class, and each of these
    ``| None``, where ``None`` means what ``help`` says it means. The value must be more than
    ``above``. ``check`` raises ValueError, with the remedy, for any other mistake in a value.
    """
    limits: Mapping[str, Any] = {"low": low, "high": high, "above": above, "check": check}
    return field(default=default, metadata={"help": help, **limits})


class Source(Enum):
    """Where a value comes from. The source decides how the value is written."""

    TEXT = "text"
    """A flag or a variable: ``"8484"`` is a number, and commas separate list items."""
    FILE = "file"
    """The types are TOML's own; ``"none"`` is ``None``."""
    JSON = "json"


class BadValue(Exception):
    """A value that its option does not accept. ``rule`` describes the accepted values."""

    def __init__(self, rule: str, found: Any = None) -> None:
        super().__init__(rule if found is None else f"{rule}, not {found!r}")
        self.rule = rule


@dataclass(frozen=True, slots=True)
class Declaration:
    """The declaration of one option. ``kind``: its annotation without ``None``."""

    kind: Any
    optional: bool = False
    limits: Mapping[str, Any] = field(default_factory=dict)


@cache
def declarations(options_class: Any) -> Mapping[str, Declaration]:
    """The options of a class by name."""
    hints = get_type_hints(options_class, include_extras=True)
    found = {}
    for declared in fields(options_class):
        kinds = _members(hints[declared.name])
        rest = [kind for kind in kinds if kind is not type(None)]
        kind = rest[0] if len(rest) == 1 else hints[declared.name]
        found[declared.name] = Declaration(kind, len(rest) < len(kinds), declared.metadata)
    return types.MappingProxyType(found)


def read_value(
    value: Any, declared: Declaration, source: Source = Source.JSON, base: Path = Path()
) -> Any:
    """``value`` in the option's own type. Paths are relative to ``base``. Raises BadValue."""
    none = source is not Source.JSON and isinstance(value, str) and value.lower() == "none"
    if declared.optional and (value is None or none):
        return None
    try:
        result = _typed(value, declared.kind, source)
        if FilePath in (declared.kind, *get_args(declared.kind)):
            result = _located(result, base)
        _check_bounds(result, declared.limits)
        if (check := declared.limits.get("check")) is not None:
            check(result)
    except (ValueError, OverflowError) as error:  # more digits than int or float take
        raise BadValue(f"cannot be used: {error}") from None
    return result


def read_table(
    table: Mapping[str, Any], options_class: Any, source: Source, base: Path = Path()
) -> tuple[dict[str, Any], list[str]]:
    """The values of a table, and its mistakes as ``key: what is wrong``. See ``read_value``."""
    known = declarations(options_class)
    values: dict[str, Any] = {}
    mistakes: list[str] = []
    for key, value in table.items():
        if key not in known:
            mistakes.append(f"{key}: unknown key; known are {', '.join(sorted(known))}")
            continue
        try:
            values[key] = read_value(value, known[key], source, base)
        except BadValue as error:
            mistakes.append(f"{key}: {error}")
    return values, mistakes


def _members(annotation: Any) -> tuple[Any, ...]:
    """The kinds of a union, or the only kind."""
    is_union = get_origin(annotation) in (Union, types.UnionType)
    return get_args(annotation) if is_union else (annotation,)


def _typed(value: Any, kind: Any, source: Source) -> Any:
    if len(_members(kind)) > 1:
        return _one_of(value, _members(kind), source)
    text = source is Source.TEXT
    if get_origin(kind) is Annotated:
        plain, unit = get_args(kind)
        return _size(value) if unit == "bytes" else _typed(value, plain, source)
    if get_origin(kind) is tuple:
        return _strings(value, text=text)
    if get_origin(kind) in (dict, Mapping):
        return _mapping(value, get_args(kind)[1], source)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _member(value, kind)
    if kind is bool:
        return _boolean(value, text=text)
    if kind in (int, float):
        return _number(value, kind, text=text)
    if isinstance(value, str):
        return value
    raise BadValue("must be a text")


def _one_of(value: Any, kinds: tuple[Any, ...], source: Source) -> Any:
    """The value in the first of several kinds that accepts it."""
    refusals = []
    for kind in kinds:
        if kind is not type(None):
            try:
                return _typed(value, kind, source)
            except BadValue as refusal:
                refusals.append(str(refusal))
    raise BadValue(", or ".join(refusals))


def _size(value: Any) -> int:
    if not isinstance(value, int | float | str):
        raise BadValue("must be a size such as '12GB'")
    try:
        return parse_bytes(value)
    except ValueError as error:
        raise BadValue(str(error)) from None


def _number(value: Any, kind: type, *, text: bool) -> int | float:
    rule = "must be a whole number" if kind is int else "must be a number"
    if text and isinstance(value, str):
        try:
            value = kind(value)
        except ValueError:
            raise BadValue(rule, value) from None
    if isinstance(value, bool) or not isinstance(value, int if kind is int else int | float):
        raise BadValue(rule, value)
    if not math.isfinite(value):
        raise BadValue("must be finite")
    return int(value) if kind is int else float(value)


def _boolean(value: Any, *, text: bool) -> bool:
    if isinstance(value, bool):
        return value
    if text and isinstance(value, str) and value.lower() in TRUE | FALSE:
        return value.lower() in TRUE
    raise BadValue("must be true or false", value)


def _strings(value: Any, *, text: bool) -> tuple[str, ...]:
    if text and isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise BadValue("must be a list of texts")


def _located(value: str | tuple[str, ...], base: Path) -> str | tuple[str, ...]:
    """Absolute paths. The error names every wrong path."""
    if isinstance(value, str):
        return _absolute(value, base)
    found, wrong = [], []
    for name in value:
        try:
            found.append(_absolute(name, base))
        except BadValue as error:
            wrong.append(str(error))
    if wrong:
        raise BadValue("; ".join(wrong))
    return tuple(found)


def _absolute(name: str, base: Path) -> str:
    if not name or "\0" in name:
        raise BadValue(f"{name!r} is no path")
    try:
        if name.startswith("~"):
            Path(name).expanduser()
            return name
        return str((base / name).absolute())
    except RuntimeError:
        raise BadValue(f"{name!r}: there is no such user") from None
    except OSError as error:
        raise BadValue(
            f"{name!r}: relative to the working directory, which is gone ({error})"
        ) from None


def _member(value: Any, kind: type[Enum]) -> Enum:
    for member in kind:
        if value == member.value:
            return member
    choices = ", ".join(repr(member.value) for member in kind)
    raise BadValue(f"must be one of {choices}", value)


def _mapping(value: Any, of: Any, source: Source) -> Mapping[str, Any]:
    """Tables by name (``[models.settings."org/name"]``), each read as the options class ``of``; or
    a copy of one object with any content."""
    if not isinstance(of, type) or not is_dataclass(of):
        return _object(value)
    if not isinstance(value, Mapping):
        raise BadValue("must be a table of tables")
    result, wrong = {}, []
    for name, table in value.items():
        if not isinstance(table, Mapping):
            wrong.append(f"{name}: must be a table")
            continue
        values, mistakes = read_table(table, of, source)
        wrong += [f"{name}.{mistake}" for mistake in mistakes]
        result[name] = of(**values) if not mistakes else None
    if wrong:
        raise BadValue("; ".join(wrong))
    return result


def _object(value: Any) -> dict[str, Any]:
    """A copy of ``value``, which must be writable as JSON in UTF-8: it is stored and shown so."""
    if not isinstance(value, Mapping):
        raise BadValue("must be an object")
    try:
        text = json.dumps(dict(value), ensure_ascii=False, allow_nan=False).encode()
        copy: dict[str, Any] = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise BadValue(
            "holds what cannot be kept: NaN, an infinite number, half a character, a date, or too "
            "many levels"
        ) from None
    return copy


def _check_bounds(value: Any, limits: Mapping[str, Any]) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    low, high, above = (limits.get(bound) for bound in ("low", "high", "above"))
    if low is not None and value < low:
        raise BadValue(f"must be at least {low}", value)
    if above is not None and value <= above:
        raise BadValue(f"must be above {above}", value)
    if high is not None and value > high:
        raise BadValue(f"must be at most {high}", value)
