"""The errors for wrong bodies: each names the field in JSON's terms, and the reason."""

import json

import pytest

from tests.support.asgi import Call
from tests.support.fake_pool import World

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "hi"}]}
HUGE = b'{"messages": [], "seed": ' + b"9" * 5000 + b"}"


def send(world: World, body: bytes) -> Call:
    return Call(world.app, "POST", CHAT, body=body)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (HUGE, "whole number of more than 4300 digits"),
        (b'{"messages": "\xff"}', "not UTF-8 at byte 14"),
    ],
)
async def test_a_body_that_no_parser_takes_is_refused_for_its_own_reason(
    still: World, body: bytes, why: str
) -> None:
    call = await send(still, body).end()
    assert call.status == 400
    assert why in call.error["message"]
    assert "nested" not in call.error["message"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"temperature": "hot"}, 'temperature: Input should be a valid number, unable to parse '
         'string as a number, not "hot".'),
        ({"stream": "perhaps"}, 'not "perhaps".'),
        ({"messages": None}, "messages: Input should be a valid list, not null."),
        ({"messages": ["hi"]}, "messages[0]: It must be a JSON object."),
        ({"stream_options": True}, "stream_options: It must be a JSON object."),
        ({"logit_bias": []}, "logit_bias: It must be a JSON object."),
    ],
)  # fmt: skip
async def test_a_wrong_value_is_told_in_json(
    still: World, changes: dict[str, object], said: str
) -> None:
    call = await send(still, json.dumps({**HELLO, **changes}).encode()).end()
    assert call.status == 400
    assert said in call.error["message"]
