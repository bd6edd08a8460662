"""The check of declared options, for each source of a value."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest

from omlxd.options import BadValue, Bytes, Seconds, Source, declarations, option, read_value


class Mode(Enum):
    OFF = "off"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Options:
    flag: bool = option(True, "")
    count: int = option(1, "", low=1, high=9)
    share: float | None = option(None, "", above=0, high=1)
    wait: Seconds = option(1.0, "", low=0)
    size: Mode | Bytes = option(Mode.OFF, "", above=0)
    names: tuple[str, ...] = option((), "")
    extra: Mapping[str, Any] | None = option(None, "")


DECLARED = declarations(Options)


@pytest.mark.parametrize(
    ("key", "value", "source", "result"),
    [
        ("flag", "yes", Source.TEXT, True),
        ("count", "3", Source.TEXT, 3),
        ("names", "a, b", Source.TEXT, ("a", "b")),
        ("share", "none", Source.TEXT, None),
        ("share", "none", Source.FILE, None),
        ("share", None, Source.JSON, None),
        ("share", 1, Source.JSON, 1.0),
        ("size", "auto", Source.FILE, Mode.AUTO),
        ("size", "2KB", Source.FILE, 2048),
        ("extra", {"a": [1]}, Source.JSON, {"a": [1]}),
    ],
)
def test_a_value_is_read_as_its_source_writes_it(
    key: str, value: Any, source: Source, result: Any
) -> None:
    read = read_value(value, DECLARED[key], source)
    assert (read, type(read)) == (result, type(result))


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("flag", "yes", "must be true or false"),
        ("flag", 1, "must be true or false"),
        ("count", "3", "must be a whole number"),
        ("count", True, "must be a whole number"),
        ("count", 3.0, "must be a whole number"),
        ("count", 0, "must be at least 1"),
        ("count", 10, "must be at most 9"),
        ("share", "none", "must be a number"),
        ("share", 0, "must be above 0"),
        ("share", float("nan"), "must be finite"),
        ("share", 10**400, "cannot be used: int too large to convert to float"),
        ("names", ["a", 1], "must be a list of texts"),
        ("extra", [], "must be an object"),
    ],
)
def test_a_refusal_says_the_rule_apart_from_the_value(key: str, value: Any, rule: str) -> None:
    with pytest.raises(BadValue) as caught:
        read_value(value, DECLARED[key])
    assert caught.value.rule == rule
    assert str(caught.value).startswith(rule)


@pytest.mark.parametrize("value", [float("inf"), "\ud800", object()])
def test_an_object_that_json_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(BadValue, match="holds what cannot be kept"):
        read_value({"a": value}, DECLARED["extra"])
