from typing import Any

import pytest

from omlxd.errors import InvalidRequest
from omlxd.text.messages import count_characters, plain_messages


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("hi", "hi"),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        ([{"type": "text", "text": ""}], ""),
        (["a", "b"], "a\nb"),
    ],
)
def test_content_becomes_a_string(content: Any, expected: str) -> None:
    assert plain_messages([{"role": "user", "content": content}]) == [
        {"role": "user", "content": expected}
    ]


def test_a_message_without_content_gets_an_empty_one() -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": '{"b":1,"a":2}'}}
    messages = plain_messages([{"role": "assistant", "tool_calls": [call], "name": None}])
    assert messages == [{"role": "assistant", "tool_calls": [call], "content": ""}]


def test_other_fields_keep_their_order() -> None:
    given = {"z": {"b": 1, "a": 2}, "role": "user", "content": "x", "a": 1}
    (message,) = plain_messages([given])
    assert list(message) == ["z", "role", "content", "a"]
    assert list(message["z"]) == ["b", "a"]


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (5, "messages[1].content"),
        ({"type": "text"}, "messages[1].content"),
        ([{"type": "image_url", "image_url": {}}], "messages[1].content[0]"),
        ([{"type": "text", "text": "a"}, 5], "messages[1].content[1]"),
        ([{"type": "text", "text": None}], "messages[1].content[0].text"),
    ],
)
def test_a_content_that_is_no_text_is_refused_by_name(content: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        plain_messages([{"role": "user", "content": "x"}, {"role": "user", "content": content}])
    assert caught.value.param == param


def test_all_strings_count_towards_the_size() -> None:
    assert count_characters([{"role": "user", "content": [{"text": "abc"}, "de", None, 7]}]) == (
        len("role") + len("user") + len("content") + len("text") + len("abc") + len("de")
    )
