"""Reads one option's value from TOML or text by its annotation, and checks its bounds."""

import math
import types
from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from omlxd.options import FilePath
from omlxd.units import parse_bytes

TRUE = frozenset({"1", "true", "yes", "on"})
FALSE = frozenset({"0", "false", "no", "off"})


class BadValue(Exception):
    """A value that its option cannot take; the text says what it may be."""


def annotations(options_class: type) -> dict[str, Any]:
    return get_type_hints(options_class, include_extras=True)


def without_none(annotation: Any) -> tuple[Any, bool]:
    """The annotation without ``None``, and whether ``None`` was allowed."""
    if get_origin(annotation) in (Union, types.UnionType):
        members = get_args(annotation)
        rest = [m for m in members if m is not type(None)]
        return (rest[0] if len(rest) == 1 else annotation), len(rest) < len(members)
    return annotation, False


def read(value: Any, annotation: Any, field: Field[Any], *, text: bool, base: Path = Path()) -> Any:
    """``value`` as the option's own type; ``text`` says that it came as a string, and paths are
    relative to ``base``.

    A flag or an environment variable is text, so ``"8484"`` is a number there and a list
    is separated by commas. In a file the types are TOML's own. Raises BadValue.
    """
    kind, optional = without_none(annotation)
    if optional and (value is None or (isinstance(value, str) and value.lower() == "none")):
        return None
    try:
        result = _typed(value, kind, text=text)
        if FilePath in (kind, *get_args(kind)):
            result = _located(result, base)
        _check_bounds(result, field.metadata)
        if (check := field.metadata.get("check")) is not None:
            check(result)
    except (ValueError, OverflowError) as error:  # more digits than int or float take
        raise BadValue(f"cannot be used: {error}") from None
    return result


def _typed(value: Any, kind: Any, *, text: bool) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        return _one_of(value, get_args(kind), text=text)
    if get_origin(kind) is Annotated:
        base, unit = get_args(kind)
        if unit == "bytes":
            return _bytes(value)
        return _typed(value, base, text=text)
    if get_origin(kind) is tuple:
        return _strings(value, text=text)
    if get_origin(kind) in (dict, Mapping):
        return _tables(value, get_args(kind)[1])
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _member(value, kind)
    if kind is bool:
        return _boolean(value, text=text)
    if kind in (int, float):
        return _number(value, kind, text=text)
    if isinstance(value, str):
        return value
    raise BadValue("must be a text")


def _one_of(value: Any, kinds: tuple[Any, ...], *, text: bool) -> Any:
    """The first of several kinds that takes the value."""
    refusals = []
    for kind in kinds:
        if kind is not type(None):
            try:
                return _typed(value, kind, text=text)
            except BadValue as refusal:
                refusals.append(str(refusal))
    raise BadValue(", or ".join(refusals))


def _bytes(value: Any) -> int:
    if not isinstance(value, int | float | str):
        raise BadValue("must be a size such as '12GB'")
    try:
        return parse_bytes(value)
    except ValueError as error:
        raise BadValue(str(error)) from None


def _number(value: Any, kind: type, *, text: bool) -> int | float:
    noun = "a whole number" if kind is int else "a number"
    if text and isinstance(value, str):
        try:
            value = kind(value)
        except ValueError:
            raise BadValue(f"must be {noun}, not {value!r}") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadValue(f"must be {noun}, not {value!r}")
    if kind is int and not isinstance(value, int):
        raise BadValue(f"must be {noun}, not {value!r}")
    if not math.isfinite(value):
        raise BadValue("must be finite")
    return int(value) if kind is int else float(value)


def _boolean(value: Any, *, text: bool) -> bool:
    if isinstance(value, bool):
        return value
    if text and isinstance(value, str) and value.lower() in TRUE | FALSE:
        return value.lower() in TRUE
    raise BadValue(f"must be true or false, not {value!r}")


def _strings(value: Any, *, text: bool) -> tuple[str, ...]:
    if text and isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise BadValue("must be a list of texts")


def _located(value: str | tuple[str, ...], base: Path) -> str | tuple[str, ...]:
    """Paths as they are whole. Every wrong one is named."""
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
    raise BadValue(f"must be one of {choices}, not {value!r}")


def _tables(value: Any, options_class: Any) -> Mapping[str, Any]:
    """Tables by name (``[models.settings."org/name"]``), each read into ``options_class``."""
    if not isinstance(value, Mapping):
        raise BadValue("must be a table of tables")
    if not isinstance(options_class, type) or not is_dataclass(options_class):
        return {str(k): v for k, v in value.items()}
    result, wrong = {}, []
    for name, table in value.items():
        if not isinstance(table, Mapping):
            wrong.append(f"{name}: must be a table")
            continue
        values, mistakes = read_table(table, options_class, text=False)
        wrong += [f"{name}.{mistake}" for mistake in mistakes]
        result[name] = options_class(**values) if not mistakes else None
    if wrong:
        raise BadValue("; ".join(wrong))
    return result


def read_table(
    table: Mapping[str, Any], options_class: Any, *, text: bool, base: Path = Path()
) -> tuple[dict[str, Any], list[str]]:
    """The values of a table and its mistakes, each ``key: what is wrong``. As ``read``."""
    hints, by_name = annotations(options_class), {f.name: f for f in fields(options_class)}
    values: dict[str, Any] = {}
    mistakes: list[str] = []
    for key, value in table.items():
        if key not in by_name:
            mistakes.append(f"{key}: unknown key; known are {', '.join(sorted(by_name))}")
            continue
        try:
            values[key] = read(value, hints[key], by_name[key], text=text, base=base)
        except BadValue as error:
            mistakes.append(f"{key}: {error}")
    return values, mistakes


def _check_bounds(value: Any, metadata: Mapping[str, Any]) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    low, high, above = (metadata.get(bound) for bound in ("low", "high", "above"))
    if low is not None and value < low:
        raise BadValue(f"must be at least {low}, not {value}")
    if above is not None and value <= above:
        raise BadValue(f"must be more than {above}, not {value}")
    if high is not None and value > high:
        raise BadValue(f"must be at most {high}, not {value}")
