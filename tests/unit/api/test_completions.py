"""POST /v1/completions: prompts of every form, and the legacy wire format."""

import asyncio
from collections.abc import Sequence

import pytest
from pydantic import ValidationError

from omlxd.api.openai.completions import MOST_TOKENS, CompletionRequest
from omlxd.api.options import ApiOptions
from omlxd.errors import GenerationFailed
from omlxd.model_settings.options import ModelSettings
from omlxd.units import MiB
from tests.support.asgi import Call, post
from tests.support.fake_pool import ByteTokenizer, End, Fail, Say, Step, Wait, World

PATH = "/v1/completions"


@pytest.fixture
def world() -> World:
    return World()


def ask(world: World, prompt: object = "once", **changes: object) -> Call:
    return post(world.app, PATH, {"model": "org/tiny", "prompt": prompt, **changes})


async def test_an_answer_in_one_piece_has_every_field(world: World) -> None:
    answer = (await ask(world).end()).json
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    assert answer["created"] == 1_760_000_000
    assert answer["choices"] == [
        {"index": 0, "text": "hello", "logprobs": None, "finish_reason": "stop"}
    ]
    assert answer["usage"]["prompt_tokens"] == 4
    assert answer["usage"]["total_tokens"] == 10
    assert world.pool.made_for == "f", "its tokens are for these files only"


async def test_a_stream_ends_with_its_reason_and_done(world: World) -> None:
    call = await ask(world, stream=True, stream_options={"include_usage": True}).end()
    *chunks, usage, done = call.events
    assert done == "[DONE]"
    assert [c["choices"][0]["text"] for c in chunks] == [*"hello", ""]
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * 5 + ["stop"]
    assert {c["object"] for c in [*chunks, usage]} == {"text_completion"}
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 6


async def test_several_prompts_are_several_choices(world: World) -> None:
    world.pool.scripts.extend([[Say("one"), End()], [Say("two"), End()]])
    answer = (await ask(world, ["a", "bc"]).end()).json
    assert [c["text"] for c in answer["choices"]] == ["one", "two"]
    assert [c["index"] for c in answer["choices"]] == [0, 1]
    assert answer["usage"]["prompt_tokens"] == 3
    assert answer["usage"]["completion_tokens"] == 8
    assert len({g.spec.id for g in world.pool.generations}) == 2
    assert world.pool.acquired == world.pool.released == 1


async def test_more_prompts_than_there_are_places_are_no_matter_of_trying_again() -> None:
    call = await ask(World(max_sequences=1), ["a", "b"]).end()
    assert (call.status, call.error["param"]) == (400, "prompt")
    assert "engine.max_waiting" in call.error["message"]
    assert (await ask(World(max_sequences=2), ["a", "b"]).end()).status == 200


async def test_several_prompts_stream_as_they_come(world: World) -> None:
    gate = asyncio.Event()
    world.pool.scripts.extend([[Wait(gate), Say("one"), End()], [Say("two"), End()]])
    call = ask(world, ["a", "bc"], stream=True).start()
    await call.until_text('"index":1,"text":"","logprobs":null,"finish_reason":"stop"')
    assert '"index":0' not in call.text
    gate.set()
    await call.end()
    text = {0: "", 1: ""}
    for chunk in call.events[:-1]:
        text[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert text == {0: "one", 1: "two"}


async def test_prompts_of_a_request_take_no_more_places_than_it_has() -> None:
    """The model's own limit counts requests, and each request has one place."""
    world, gate = World(), asyncio.Event()
    world.pool.model_settings = ModelSettings(max_concurrent_requests=1)
    world.pool.scripts.extend([[Wait(gate), Say("one"), End()], [Say("two"), End()]])
    call = ask(world, ["a", "bc"]).start()
    await world.pool.reading.wait()
    assert len(world.pool.generations) == 1
    gate.set()
    answer = (await call.end()).json
    assert [c["text"] for c in answer["choices"]] == ["one", "two"]
    assert world.pool.acquired == world.pool.released == 1
    assert all(generation.cancelled for generation in world.pool.generations)


@pytest.mark.parametrize("leaves", [True, False])
async def test_the_end_of_one_of_several_ends_all(world: World, leaves: bool) -> None:
    failing: Sequence[Step] = [Say("a"), Wait()] if leaves else [Fail(GenerationFailed("no"))]
    world.pool.scripts.extend([failing, [Wait()]])
    call = ask(world, ["a", "b"], stream=True).start()
    if leaves:
        await call.until_text('"text":"a"')
        call.leave()
    await call.end()
    assert all(generation.cancelled for generation in world.pool.generations)
    assert world.pool.acquired == world.pool.released == 1
    assert leaves or call.status == 500


async def test_prompts_may_be_tokens(world: World) -> None:
    await ask(world, [72, 105]).end()
    assert world.pool.generations[-1].spec.prompt == (72, 105)
    await ask(world, [[72], [105]]).end()
    assert [g.spec.prompt for g in world.pool.generations[-2:]] == [(72,), (105,)]


async def test_a_model_without_a_template_completes(world: World) -> None:
    """T52."""
    world.pool.tokenizer_made = ByteTokenizer(has_chat_template=False)
    assert (await ask(world).end()).status == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": ["a", "\ud83d"]}, "prompt[1]"),
        ({"prompt": ["a", "x" * 1000]}, "prompt[1]"),
        ({"prompt": [[1, 2], [3, 257]]}, "prompt[1][1]"),
        ({"prompt": [[257]]}, "prompt[0][0]"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": [257]}, "prompt[0]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": [1, False]}, "prompt[1]"),
        ({"prompt": [[1], [True]]}, "prompt[1][0]"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"prompt": ["a"] * 17}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({}, "prompt"),
        ({"prompt": "a", "n": 2}, "n"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": "a", "suffix": "x"}, "suffix"),
        ({"prompt": "a", "logprobs": 1, "top_logprobs": 3}, "top_logprobs"),
        ({"prompt": "a", "add_special_tokens": False}, "add_special_tokens"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
    ],
)
async def test_a_wrong_field_is_a_400_that_names_it(
    still: World, body: dict[str, object], param: str
) -> None:
    """T27: the empty prompt among them."""
    call = await post(still.app, PATH, body).end()
    assert (call.status, call.error["param"]) == (400, param)
    assert param in call.error["message"]
    assert still.pool.generations == []


async def test_an_endless_number_is_not_repeated(still: World) -> None:
    long = 10**3999
    for body in ({"prompt": [[1, long]]}, {"prompt": "a", "logit_bias": {str(long): 1}}):
        call = await post(still.app, PATH, body).end()
        assert call.status == 400
        assert len(call.error["message"]) < 200


@pytest.mark.parametrize(
    "prompt",
    [[1] * (MOST_TOKENS + 1), [[1] * (MOST_TOKENS // 2)] * 2, ["a"] * (MOST_TOKENS + 1)],
    ids=["tokens", "token lists", "texts"],
)
async def test_more_tokens_than_the_loop_can_take_at_once_are_refused_by_name(
    still: World, prompt: list[object]
) -> None:
    call = await ask(still, prompt).end()
    assert (call.status, call.error["param"]) == (400, "prompt")
    assert str(MOST_TOKENS) in call.error["message"]


@pytest.mark.parametrize("wrong", [[-1, -2], [[-1, -2], [-3]], [1, "a", "b"], ["a", 1, 2]])
def test_many_wrong_tokens_are_one_error(wrong: list[object]) -> None:
    with pytest.raises(ValidationError) as caught:
        CompletionRequest.model_validate({"prompt": wrong})
    assert caught.value.error_count() == 1


def test_a_body_of_tokens_is_not_larger_than_the_loop_can_take() -> None:
    assert ApiOptions().max_body == 8 * MiB


async def test_logprobs_are_parallel_lists_with_offsets(world: World) -> None:
    world.pool.scripts.extend([[Say("aéb"), End()], [Say("aéb"), End()]])
    whole = (await ask(world, logprobs=2).end()).json["choices"][0]["logprobs"]
    assert whole["tokens"] == ["a", "\\xc3", "\\xa9", "b"]
    assert whole["token_logprobs"] == [-0.5] * 4
    assert whole["text_offset"] == [0, 1, 1, 2]
    assert whole["top_logprobs"][0] == {"a": -0.5, "`": -1.5}
    stream = await ask(world, logprobs=2, stream=True).end()
    parts = [c["choices"][0]["logprobs"] for c in stream.events[:-1]]
    for key in whole:
        assert [item for part in parts if part for item in part[key]] == whole[key]


async def test_a_stop_may_be_a_list(world: World) -> None:
    world.pool.scripts.append([Say("one stop two"), End()])
    answer = (await ask(world, stop=["nothing", " stop"]).end()).json
    assert answer["choices"][0]["text"] == "one"
