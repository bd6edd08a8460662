"""How a part declares its options: frozen dataclasses whose fields explain themselves.

``config`` reads the annotations and the metadata made here; the example file is written
from them.
"""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Annotated, Any

Bytes = Annotated[int, "bytes"]
"""A size; the configuration takes texts such as ``"12GB"``, and no number but 0."""
Seconds = Annotated[float, "seconds"]
FilePath = Annotated[str, "path"]
"""A file or folder; relative to the folder of the configuration file that names it, else to the
working directory. A ``~`` stays, since another account's daemon may be meant."""


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
    ``Mapping[str, Table]`` of another options class, and each of these ``| None``, where ``None``
    means what ``help`` says it means. ``above`` is a bound that the value itself must not touch;
    ``check`` raises ValueError, with the remedy, for what else is wrong with one.
    """
    limits: Mapping[str, Any] = {"low": low, "high": high, "above": above, "check": check}
    return field(default=default, metadata={"help": help, **limits})
