"""Errors are values: they can be raised again, copied and sent to another process."""

import copy
import inspect
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from omlxd.errors import OmlxdError

Remake = Callable[[OmlxdError], OmlxdError]


def every_class(kind: type[OmlxdError] = OmlxdError) -> Iterator[type[OmlxdError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from every_class(below)


def made(kind: type[OmlxdError]) -> OmlxdError:
    """An error of ``kind``, with a value for each parameter without default, and with details."""
    values: dict[str, Any] = {
        "message": "text",
        "mistakes": ["one", "two"],
        "candidates": ["a", "b"],
        "model": "m",
        "param": "field",
        "retry_after": 3.0,
        "prompt_tokens": 9,
        "context_length": 8,
    }
    parameters = inspect.signature(kind).parameters
    error = kind(**{name: values[name] for name in parameters if name in values})
    error.details = {**error.details, "bytes": 7}
    return error


def said(error: OmlxdError) -> dict[str, Any]:
    return {
        "class": type(error),
        "args": error.args,
        "text": str(error),
        "code": error.code,
        "param": error.param,
        "retry_after": error.retry_after,
        **error.__dict__,
    }


@pytest.mark.parametrize("kind", list(every_class()))
@pytest.mark.parametrize(
    "remake",
    [
        pytest.param(lambda error: error.again(), id="again"),
        pytest.param(copy.copy, id="copy"),
        pytest.param(copy.deepcopy, id="deepcopy"),
        pytest.param(lambda error: pickle.loads(pickle.dumps(error)), id="pickle"),
    ],
)
def test_every_error_can_be_made_again_without_its_traceback(
    kind: type[OmlxdError], remake: Remake
) -> None:
    with pytest.raises(OmlxdError) as caught:
        raise made(kind) from ValueError("cause")
    error = caught.value
    again = remake(error)
    assert again is not error
    assert said(again) == said(error)
    assert again.__traceback__ is None
    assert again.__cause__ is None
    assert again.__context__ is None


def test_one_more_telling_may_differ_in_an_attribute() -> None:
    error = OmlxdError("first", bytes=7)
    again = error.again(message="second", retry_after=2.0)
    assert (again.message, str(again), again.retry_after) == ("second", "second", 2.0)
    assert (error.message, str(error), error.retry_after) == ("first", "first", None)
