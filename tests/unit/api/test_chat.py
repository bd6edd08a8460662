"""POST /v1/chat/completions: the wire format that clients read."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from omlxd.api.openai.chat import MOST_PIECES
from omlxd.backend.sequence import FinishReason
from omlxd.errors import GenerationFailed, ModelLoadFailed, QueueFull
from omlxd.library.catalog import ModelKind
from tests.support.asgi import Call, get, post
from tests.support.fake_pool import (
    ByteTokenizer,
    End,
    Fail,
    FakePool,
    Progress,
    Say,
    Step,
    Wait,
    World,
    model,
)

PATH = "/v1/chat/completions"
HELLO = {"model": "org/tiny", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def world() -> World:
    return World()


def ask(world: World, **changes: object) -> Call:
    return post(world.app, PATH, {**HELLO, **changes})


async def test_an_answer_in_one_piece_has_every_field(world: World) -> None:
    answer = (await ask(world).end()).json
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert answer["created"] == 1_760_000_000
    assert answer["model"] == "org/tiny"
    (choice,) = answer["choices"]
    assert choice["index"] == 0
    assert choice["message"] == {"role": "assistant", "content": "hello", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] is None
    assert answer["usage"] == {
        "prompt_tokens": len("user: hi\n"),
        "completion_tokens": 6,
        "total_tokens": len("user: hi\n") + 6,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert world.pool.made_for == "f", "its tokens are for these files only"


async def test_a_stream_is_role_deltas_finish_done(world: World) -> None:
    """T35: exactly one non-null finish_reason, on its own chunk with an empty delta."""
    call = await ask(world, stream=True).end()
    assert call.status == 200
    assert call.headers["content-type"].startswith("text/event-stream")
    assert call.headers["cache-control"] == "no-cache"
    assert call.headers["x-accel-buffering"] == "no"
    *chunks, done = call.events
    assert done == "[DONE]"
    assert call.complete
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert [d["content"] for d in deltas[1:-1]] == list("hello")
    assert deltas[-1] == {}
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    assert sum("role" in delta for delta in deltas) == 1


async def test_every_chunk_has_one_id_one_created_and_its_object(world: World) -> None:
    """T59: strict clients fail without ``created``."""
    call = await ask(world, stream=True, stream_options={"include_usage": True}).end()
    chunks = call.events[:-1]
    heads = {(c["id"], c["created"], c["object"], c["model"]) for c in chunks}
    assert len(heads) == 1
    assert next(iter(heads))[1:] == (1_760_000_000, "chat.completion.chunk", "org/tiny")


async def test_usage_is_a_chunk_of_its_own_only_when_asked_for(world: World) -> None:
    """T55: cached tokens are shown, and counted as prompt tokens too."""
    world.pool.scripts.append([Progress(9, 9, cached=8), Say("a"), End()])
    call = await ask(world, stream=True, stream_options={"include_usage": True}).end()
    *others, last, _ = call.events
    assert all("usage" not in chunk for chunk in others)
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens"] == 9
    assert last["usage"]["completion_tokens"] == 2
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 8}
    plain = await ask(world, stream=True).end()
    assert all("usage" not in chunk for chunk in plain.events[:-1])


async def test_deltas_joined_are_the_whole_text_in_any_script(world: World) -> None:
    """T32: no U+FFFD, nothing cut inside a character. T37: blank lines are kept."""
    text = "Žluťoučký kůň\n\n    日本語 👩‍👩‍👧‍👦\n \n"
    world.pool.scripts.extend([[Say(text), End()], [Say(text), End()]])
    stream = await ask(world, stream=True).end()
    whole = (await ask(world).end()).json
    pieces = [c["choices"][0]["delta"].get("content", "") for c in stream.events[:-1]]
    assert "".join(pieces) == whole["choices"][0]["message"]["content"] == text
    assert "\n" in pieces


async def test_a_length_finish_keeps_its_last_token(world: World) -> None:
    world.pool.scripts.append([Say("ab"), End(FinishReason.LENGTH)])
    answer = (await ask(world).end()).json
    assert answer["choices"][0]["message"]["content"] == "ab."
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 3


async def test_a_stop_string_may_name_a_special_token(world: World) -> None:
    """Clients stop at ``<|im_end|>``, even if the model ends its answers with another token."""
    world.pool.tokenizer_made.stop_tokens = frozenset()
    await ask(world, stop=["<eos>"]).end()
    assert world.pool.generations[-1].spec.stop_tokens == {256}
    await ask(world, stop=["eos"]).end()
    assert world.pool.generations[-1].spec.stop_tokens == frozenset()


async def test_a_stop_string_ends_the_answer_and_cancels_the_rest(world: World) -> None:
    world.pool.scripts.append([Say("one\n\nUsage\n\nUser: two"), Wait()])
    answer = (await ask(world, stop="\n\nUser:").end()).json
    assert answer["choices"][0]["message"]["content"] == "one\n\nUsage"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert world.pool.generations[0].cancels >= 1


async def test_content_may_be_parts_and_null(world: World) -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "c", "name": "kim"},
    ]
    assert (await ask(world, messages=messages).end()).status == 200
    prompt = bytes(world.pool.generations[0].spec.prompt).decode()
    assert prompt == "system: be brief\nuser: a\nb\nassistant: \nuser: c\n"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_the_first_byte_has_its_own_status(
    world: World, stream: bool
) -> None:
    unknown = await ask(world, stream=stream, model="nope").end()
    assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")
    assert unknown.error["param"] == "model"
    assert "org/tiny" in unknown.error["message"]

    long = [{"role": "user", "content": "x" * 1000}]
    too_long = await ask(world, stream=stream, messages=long).end()
    assert (too_long.status, too_long.error["code"]) == (400, "context_length_exceeded")
    assert too_long.error["prompt_tokens"] == 1007
    assert too_long.error["context_length"] == 1000

    world.pool.submit_error = QueueFull("full", retry_after=2.5)
    full = await ask(world, stream=stream).end()
    assert (full.status, full.headers["retry-after"]) == (503, "3")
    assert full.headers["x-should-retry"] == "true"
    world.pool.submit_error = None

    world.pool.acquire_error = ModelLoadFailed("no", retry_after=30)
    failed = await ask(world, stream=stream).end()
    assert (failed.status, failed.headers["retry-after"]) == (500, "30")
    assert failed.headers["x-should-retry"] == "false"
    world.pool.acquire_error = None

    world.pool.scripts.append([Fail(GenerationFailed("preflight"))])
    refused = await ask(world, stream=stream).end()
    assert (refused.status, refused.error["code"]) == (500, "generation_failed")
    assert world.pool.acquired == world.pool.released == 2

    world.pool.tokenizer_made = ByteTokenizer(has_chat_template=False)
    untemplated = await ask(world, stream=stream).end()
    assert (untemplated.status, untemplated.error["code"]) == (400, "no_chat_template")  # T52
    assert "/v1/completions" in untemplated.error["message"]


async def test_a_failure_in_the_stream_is_an_error_event_and_done(world: World) -> None:
    """T34."""
    world.pool.scripts.append([Say("ab"), Fail(GenerationFailed("the step failed", step=3))])
    call = await ask(world, stream=True).end()
    assert call.status == 200
    *_, error, done = call.events
    assert error["error"]["message"] == "the step failed"
    assert error["error"]["code"] == "generation_failed"
    assert error["error"]["step"] == 3
    assert done == "[DONE]"
    assert call.complete
    assert world.pool.released == 1


@pytest.mark.parametrize("error", [GenerationFailed("no"), ZeroDivisionError("no")])
@pytest.mark.parametrize(
    ("path", "body"), [(PATH, HELLO), ("/v1/completions", {"prompt": "a"})], ids=["chat", "text"]
)
async def test_an_error_event_has_the_head_of_its_stream(
    world: World, path: str, body: dict[str, object], error: Exception
) -> None:
    """T59. It has no choices: otherwise Zed would treat it as a chunk and go on."""
    world.pool.scripts.append([Say("ab"), Fail(error)])
    call = await post(world.app, path, {**body, "stream": True}).end()
    *_, last, failed, _ = call.events
    del last["choices"], failed["error"]
    assert failed == last
    assert failed["created"] == 1_760_000_000


async def test_a_fault_of_ours_in_the_stream_tells_nothing_of_the_inside(world: World) -> None:
    world.pool.scripts.append([Say("ab"), Fail(ZeroDivisionError("secret"))])
    call = await ask(world, stream=True).end()
    assert call.events[-2]["error"]["code"] == "internal_error"
    assert call.events[-1] == "[DONE]"
    assert "secret" not in call.text


async def test_an_unhandled_fault_is_a_500_in_the_right_shape(world: World) -> None:
    world.pool.scripts.extend([[Fail(ZeroDivisionError("secret"))]] * 2)
    for stream in (False, True):
        call = await ask(world, stream=stream).end()
        assert (call.status, call.error["code"]) == (500, "internal_error")
        assert "secret" not in call.text
        assert call.headers["x-request-id"] in call.error["message"]


async def test_a_failing_request_does_not_hurt_the_next(world: World) -> None:
    """T43."""
    world.pool.scripts.append([Fail(TypeError("boom"))])
    assert (await ask(world).end()).status == 500
    assert (await ask(world).end()).status == 200


async def test_comments_flow_while_the_prompt_is_read() -> None:
    """T40: one at once, then one per interval of silence."""
    world = World()
    world.options = type(world.options)(keep_alive_interval=0.01)
    gate = asyncio.Event()
    world.pool.scripts.append([Progress(1, 9), Wait(gate), Say("a"), End()])
    call = ask(world, stream=True).start()
    await call.until(lambda c: c.text.count(": keep-alive\n\n") >= 3)
    assert call.events == []
    gate.set()
    await call.end()
    assert call.events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert call.events[-1] == "[DONE]"


async def test_a_long_load_opens_the_stream_and_its_failure_is_an_event() -> None:
    world = World()
    world.options = type(world.options)(keep_alive_interval=0.01, hold_start=0.01)
    world.pool.gate = asyncio.Event()
    world.pool.acquire_error = ModelLoadFailed("no such weights")
    call = ask(world, stream=True).start()
    await call.until(lambda c: c.text.count(": keep-alive\n\n") >= 2)
    assert call.status == 200
    world.pool.gate.set()
    await call.end()
    assert [e if e == "[DONE]" else e["error"]["code"] for e in call.events] == [
        "model_load_failed",
        "[DONE]",
    ]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("place", ["loading", "queued", "prefill", "decode"])
async def test_a_client_that_leaves_frees_everything_once(stream: bool, place: str) -> None:
    """T42, T10: in every phase of its request."""
    world = World()
    steps: dict[str, Sequence[Step]] = {
        "queued": [Wait()],
        "prefill": [Progress(1, 9), Wait()],
        "decode": [Progress(9, 9), Say("a"), Wait()],
    }
    if place == "loading":
        world.pool.gate = asyncio.Event()
    else:
        world.pool.scripts.append(steps[place])
    call = ask(world, stream=stream).start()
    async with asyncio.timeout(5):
        await (world.pool.waiting if place == "loading" else world.pool.reading).wait()
    if stream and place == "decode":
        await call.until_text('"content":"a"')
    call.leave()
    await call.end()
    assert world.pool.acquired == world.pool.released
    assert all(generation.cancelled for generation in world.pool.generations)
    assert "[DONE]" not in call.text
    world.pool.gate = None
    assert (await ask(world).end()).status == 200


async def test_what_a_request_cut_short_has_cost_is_counted(world: World) -> None:
    """T42: counters include the partial tokens."""

    async def served() -> tuple[int, int]:
        server = (await get(world.app, "/status").end()).json["server"]
        return server["prompt_tokens"], server["completion_tokens"]

    prompt = len("user: hi\n")
    assert await served() == (0, 0)
    await ask(world).end()
    assert await served() == (prompt, len("hello") + 1)
    world.pool.scripts += [[Say("abc"), Wait()], [Progress(4, prompt), Wait()]]
    for _ in range(2):
        world.pool.reading.clear()
        call = ask(world).start()
        async with asyncio.timeout(5):
            await world.pool.reading.wait()
            generation = world.pool.generations[-1]
            while generation.completion_tokens < 3 and generation.prompt_done < 4:
                await asyncio.sleep(0)
        call.leave()
        await call.end()
    assert await served() == (2 * prompt + 4, len("hello") + 1 + len("abc"))


async def test_a_client_that_does_not_read_counts_as_gone() -> None:
    world = World()
    world.options = type(world.options)(
        keep_alive_interval=0.005, hold_start=0.0, send_timeout=0.02
    )
    world.pool.scripts.append([Say("a"), Wait()])
    call = ask(world, stream=True)
    stuck = asyncio.Event()

    async def send(message: object) -> None:
        await stuck.wait()

    call._send = send  # type: ignore[method-assign]
    await call.end()
    assert world.pool.acquired == world.pool.released == 1


async def test_answer_length_is_what_was_asked_within_the_context(world: World) -> None:
    prompt = len("user: hi\n")
    cases = [
        ({}, 1000 - prompt),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 7, "max_tokens": 5}, 7),
        ({"max_tokens": 100_000}, 1000 - prompt),
    ]
    for changes, expected in cases:
        await ask(world, **changes).end()
        assert world.pool.generations[-1].spec.max_tokens == expected


async def test_the_effective_context_is_the_smaller_one(world: World) -> None:
    """T57."""
    world.pool.model_settings = type(world.pool.model_settings)(context_length=50)
    await ask(world).end()
    assert world.pool.generations[-1].spec.max_tokens == 50 - len("user: hi\n")
    long = [{"role": "user", "content": "x" * 50}]
    call = await ask(world, messages=long).end()
    assert call.error["context_length"] == 50


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "x"}] * (MOST_PIECES + 1),
        [{"role": "user", "content": [{"type": "text", "text": "x"}] * (MOST_PIECES // 2)}] * 3,
    ],
    ids=["messages", "parts"],
)
async def test_more_messages_than_the_loop_can_take_at_once_are_refused_by_name(
    still: World, messages: list[dict[str, Any]]
) -> None:
    call = await ask(still, messages=messages).end()
    assert (call.status, call.error["param"]) == (400, "messages")
    assert str(MOST_PIECES) in call.error["message"]


async def test_an_unknown_context_still_gives_a_long_answer() -> None:
    world = World()
    world.pool = type(world.pool)(model(context_length=None))
    await ask(world).end()
    assert world.pool.generations[-1].spec.max_tokens == 8192


async def test_sampling_is_the_requests_then_the_settings_then_the_makers() -> None:
    world = World()
    made_for = {"temperature": 0.6, "top_k": 20, "top_p": "junk", "repetition_penalty": True}
    world.pool = type(world.pool)(model(generation=made_for))
    world.pool.model_settings = type(world.pool.model_settings)(top_p=0.5, max_tokens=77)
    await ask(world, temperature=0.1, seed=-1, logit_bias={"5": -100}).end()
    spec = world.pool.generations[-1].spec
    assert spec.max_tokens == 77
    assert spec.stop_tokens == {256}
    assert spec.sampling.temperature == 0.1
    assert spec.sampling.top_p == 0.5
    assert spec.sampling.top_k == 20
    assert spec.sampling.repetition_penalty is None
    assert spec.sampling.seed == 2**64 - 1
    assert spec.sampling.logit_bias == ((5, -100.0),)
    await ask(world).end()
    assert world.pool.generations[-1].spec.sampling.temperature == 0.6
    await ask(world, top_p=0, top_k=-1).end()
    assert world.pool.generations[-1].spec.sampling.top_k == 1
    assert world.pool.generations[-1].spec.sampling.top_p is None


async def test_logprobs_have_tokens_bytes_and_alternatives(world: World) -> None:
    world.pool.scripts.extend([[Say("é"), End()], [Say("é"), End()]])
    whole = (await ask(world, logprobs=True, top_logprobs=2).end()).json
    content = whole["choices"][0]["logprobs"]["content"]
    assert [entry["bytes"] for entry in content] == [[0xC3], [0xA9]]
    assert content[0]["logprob"] == -0.5
    assert [top["logprob"] for top in content[0]["top_logprobs"]] == [-0.5, -1.5]
    stream = await ask(world, stream=True, logprobs=True, top_logprobs=2).end()
    streamed = [
        entry
        for chunk in stream.events[:-1]
        for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == content
    assert world.pool.generations[0].spec.top_logprobs == 2


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]},
         "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"logit_bias": {"300": 1}}, "logit_bias.300"),
        ({"add_special_tokens": True}, "add_special_tokens"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        *[({name: True}, name) for name in (
            "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p",
            "seed", "repetition_penalty", "presence_penalty", "frequency_penalty", "n")],
        ({"logit_bias": {"5": True}}, "logit_bias.5"),
        ({"logprobs": True, "top_logprobs": True}, "top_logprobs"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"n": 2}, "n"),
        ({"audio": {}}, "audio"),
        ({"previous_response_id": "r"}, "previous_response_id"),
        ({"chat_template": "x"}, "chat_template"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
         "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": "a"},
                       {"role": "assistant", "content": "b", "prefix": True}]},
         "messages[1].prefix"),
        ({"messages": [{"role": "user", "content": "a", "images": ["aGk="]}]},
         "messages[0].images"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
async def test_a_wrong_field_is_a_400_that_names_it(
    still: World, changes: dict[str, object], param: str, stream: bool
) -> None:
    """T41: before the headers, streamed or not."""
    call = await ask(still, stream=stream, **changes).end()
    assert call.status == 400
    assert call.error["param"] == param
    assert call.error["type"] == "invalid_request_error"
    assert param.split("[")[0].split(".")[0] in call.error["message"]
    assert still.pool.generations == []


async def test_a_model_that_writes_no_text_is_refused() -> None:
    world = World(pool=FakePool(model(kind=ModelKind.EMBEDDING)))
    call = await ask(world, stream=True).end()
    assert (call.status, call.error["param"]) == (400, "model")
    assert "embedding" in call.error["message"]


async def test_what_changes_nothing_is_accepted(world: World) -> None:
    harmless = {
        "n": 1,
        "logprobs": False,
        "top_logprobs": 0,
        "tools": [],
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "user": "u",
        "metadata": {"a": "b"},
        "store": False,
        "parallel_tool_calls": True,
        "stop": None,
        "unheard_of": 1,
        "stream_options": None,
        "logit_bias": None,
    }
    assert (await ask(world, **harmless).end()).status == 200
