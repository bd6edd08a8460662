"""Prompts made in threads: the sizes, the deadline, and the threads that are left behind."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import pytest

from omlxd.errors import (
    BodyTooLarge,
    InvalidRequest,
    NoChatTemplate,
    OmlxdError,
    TemplateFailed,
    TemplatesBusy,
)
from omlxd.text.options import TextOptions
from omlxd.text.template import PromptMaker, count_characters, plain_messages
from tests.support.tokenizers import BOS, PieceTokenizer

HELLO = [{"role": "user", "content": "hello"}]


def contents(messages: Sequence[Mapping[str, Any]]) -> str:
    return "".join(f"<s>{message['content']}" for message in messages)


async def chat(maker: PromptMaker, tokenizer: PieceTokenizer, messages: Any = HELLO) -> list[int]:
    return await maker.chat_prompt(tokenizer, messages, model="m")


class Hanging:
    """A template that runs until the test releases it."""

    def __init__(self) -> None:
        self.started = threading.Semaphore(0)
        self.let_go = threading.Event()
        self.threads: list[threading.Thread] = []
        self.tokenizer = PieceTokenizer(render=self._render)

    def _render(self, _: Sequence[Mapping[str, Any]]) -> str:
        self.threads.append(threading.current_thread())
        self.started.release()
        self.let_go.wait()
        return "late"


@pytest.fixture
async def hanging() -> AsyncIterator[Hanging]:
    template = Hanging()
    yield template
    template.let_go.set()
    for thread in template.threads:
        thread.join()
    await asyncio.sleep(0)


async def test_a_chat_prompt_gets_no_second_beginning_of_text() -> None:
    tokenizer = PieceTokenizer(render=contents)
    tokens = await chat(PromptMaker(TextOptions()), tokenizer)
    assert tokens == tokenizer.encode("<s>hello", add_special_tokens=False)


async def test_a_completion_begins_as_its_tokenizer_says() -> None:
    tokenizer = PieceTokenizer()
    tokens = await PromptMaker(TextOptions()).completion_prompt(tokenizer, "hello")
    assert tokens == [BOS, *tokenizer.encode("hello", add_special_tokens=False)]


async def test_templates_get_strings_whatever_the_client_sent() -> None:
    tokenizer = PieceTokenizer(render=contents)
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    await chat(
        PromptMaker(TextOptions()),
        tokenizer,
        [{"role": "user", "content": parts}, {"role": "assistant", "content": None}],
    )
    assert tokenizer.rendered == [
        [{"role": "user", "content": "a\nb"}, {"role": "assistant", "content": ""}]
    ]


async def test_a_model_without_a_template_takes_no_messages_but_completions() -> None:
    """T52."""
    tokenizer = PieceTokenizer()
    maker = PromptMaker(TextOptions())
    with pytest.raises(NoChatTemplate, match="'m' has no chat template"):
        await chat(maker, tokenizer)
    assert await maker.completion_prompt(tokenizer, "x")


@pytest.mark.parametrize("prompt", ["", []])
async def test_an_empty_prompt_is_refused(prompt: str | list[int]) -> None:
    """T27."""
    with pytest.raises(InvalidRequest) as caught:
        await PromptMaker(TextOptions()).completion_prompt(PieceTokenizer(), prompt)
    assert caught.value.param == "prompt"


async def test_messages_that_make_no_prompt_are_refused() -> None:
    """T27."""
    maker = PromptMaker(TextOptions())
    with pytest.raises(InvalidRequest, match="at least one"):
        await chat(maker, PieceTokenizer(render=contents), [])
    with pytest.raises(InvalidRequest, match="no tokens"):
        await chat(maker, PieceTokenizer(render=lambda _: ""))


async def test_a_prompt_of_ids_is_taken_as_it_is_once_checked() -> None:
    tokenizer = PieceTokenizer()
    maker = PromptMaker(TextOptions())
    assert await maker.completion_prompt(tokenizer, (1, 0)) == [1, 0]
    for token in (-1, tokenizer.vocab_size):
        with pytest.raises(InvalidRequest, match=r"prompt\[1\]"):
            await maker.completion_prompt(tokenizer, [0, token])


async def test_half_a_surrogate_pair_is_refused_by_name() -> None:
    maker = PromptMaker(TextOptions())
    with pytest.raises(InvalidRequest, match="surrogate") as caught:
        await maker.completion_prompt(PieceTokenizer(), "secret \ud83d")
    assert caught.value.param == "prompt"
    assert "secret" not in caught.value.message


async def test_too_long_an_input_is_refused_before_it_is_rendered() -> None:
    tokenizer = PieceTokenizer(render=contents)
    maker = PromptMaker(TextOptions(max_input_characters=100))
    with pytest.raises(BodyTooLarge, match=r"text\.max_input_characters"):
        await chat(maker, tokenizer, [{"role": "user", "content": "x" * 100}])
    with pytest.raises(BodyTooLarge):
        await maker.completion_prompt(tokenizer, "x" * 101)
    assert tokenizer.rendered == []
    assert await maker.completion_prompt(tokenizer, "x" * 100)


async def test_too_long_a_rendered_text_is_refused() -> None:
    maker = PromptMaker(TextOptions(max_rendered_characters=100))
    with pytest.raises(TemplateFailed, match=r"101 .* 100 .*text\.max_rendered_characters"):
        await chat(maker, PieceTokenizer(render=lambda _: "x" * 101))


async def test_the_error_of_a_template_fails_its_request() -> None:
    def refuse(_: Any) -> str:
        raise TemplateFailed("roles must alternate", param="messages")

    with pytest.raises(TemplateFailed, match="roles must alternate"):
        await chat(PromptMaker(TextOptions()), PieceTokenizer(render=refuse))


async def test_an_unexpected_error_reaches_the_request_and_frees_the_place() -> None:
    def fail(_: Any) -> str:
        raise TimeoutError("not the deadline")

    maker = PromptMaker(TextOptions(max_renders=1))
    for _ in range(3):
        with pytest.raises(TimeoutError, match="not the deadline"):
            await chat(maker, PieceTokenizer(render=fail))
    assert maker.left_behind == 0


async def test_a_render_past_its_deadline_fails_its_request_and_is_left_behind(
    hanging: Hanging,
) -> None:
    maker = PromptMaker(TextOptions(render_deadline=0.02, max_renders=2))
    with pytest.raises(TemplateFailed, match=r"0\.02 s.*text\.render_deadline"):
        await chat(maker, hanging.tokenizer)
    assert maker.left_behind == 1
    assert await chat(maker, PieceTokenizer(render=contents))


class Talkative(PieceTokenizer):
    """A template that writes for as long as it may."""

    def __init__(self) -> None:
        super().__init__(render=contents)
        self.ended: list[OmlxdError] = []
        self.most = 0

    def render(self, *_: Any, check: Callable[[int], None], **__: Any) -> str:
        try:
            while True:
                check(self.most)
                self.most += 1
        except OmlxdError as error:
            self.ended.append(error)
            raise


async def test_a_template_that_writes_without_end_is_stopped_at_the_limit() -> None:
    maker = PromptMaker(TextOptions(max_rendered_characters=1000))
    tokenizer = Talkative()
    with pytest.raises(TemplateFailed, match=r"text\.max_rendered_characters"):
        await chat(maker, tokenizer)
    assert tokenizer.most == 1001


async def test_a_render_that_nobody_waits_for_ends_as_soon_as_it_writes() -> None:
    maker = PromptMaker(TextOptions(render_deadline=0.02, max_rendered_characters=10**12))
    tokenizer = Talkative()
    with pytest.raises(TemplateFailed, match=r"text\.render_deadline"):
        await chat(maker, tokenizer)
    async with asyncio.timeout(60):
        while maker.left_behind:
            await asyncio.sleep(0.001)
    assert len(tokenizer.ended) == 1


async def test_only_so_many_renders_are_left_behind(hanging: Hanging) -> None:
    maker = PromptMaker(TextOptions(render_deadline=0.02, max_renders=2))
    results = await asyncio.gather(
        *(chat(maker, hanging.tokenizer) for _ in range(10)), return_exceptions=True
    )
    assert (
        sorted(type(r).__name__ for r in results) == ["TemplateFailed"] * 2 + ["TemplatesBusy"] * 8
    )
    assert len(hanging.threads) == 2
    with pytest.raises(TemplatesBusy) as caught:
        await chat(maker, PieceTokenizer(render=contents))
    assert caught.value.retry_after is not None

    hanging.let_go.set()
    for thread in hanging.threads:
        thread.join()
    await asyncio.sleep(0)
    assert maker.left_behind == 0
    assert await chat(maker, PieceTokenizer(render=contents))


async def test_requests_wait_for_a_place_rather_than_fail(hanging: Hanging) -> None:
    maker = PromptMaker(TextOptions(max_renders=1))
    first = asyncio.create_task(chat(maker, hanging.tokenizer))
    await asyncio.to_thread(hanging.started.acquire)
    second = asyncio.create_task(chat(maker, PieceTokenizer(render=contents)))
    await asyncio.sleep(0)
    assert not second.done()
    hanging.let_go.set()
    assert await first == hanging.tokenizer.encode("late", add_special_tokens=False)
    assert await second


async def test_a_cancelled_request_keeps_its_place_until_its_render_ends(hanging: Hanging) -> None:
    """T42: nothing stays behind, and no more threads than places exist."""
    maker = PromptMaker(TextOptions(max_renders=1))
    gone = asyncio.create_task(chat(maker, hanging.tokenizer))
    await asyncio.to_thread(hanging.started.acquire)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    waiting = asyncio.create_task(chat(maker, PieceTokenizer(render=contents)))
    await asyncio.sleep(0)
    assert not waiting.done()
    hanging.let_go.set()
    assert await waiting


async def test_an_error_that_nobody_waits_for_is_no_noise() -> None:
    let_go = threading.Event()
    threads = []

    def fail_late(_: Any) -> str:
        threads.append(threading.current_thread())
        let_go.wait()
        raise TemplateFailed("late", param="messages")

    noise: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: noise.append(context))
    maker = PromptMaker(TextOptions(render_deadline=0.02))
    with pytest.raises(TemplateFailed, match="took longer"):
        await chat(maker, PieceTokenizer(render=fail_late))
    let_go.set()
    threads[0].join()
    await asyncio.sleep(0)
    gc.collect()
    assert noise == []


async def test_renders_run_in_daemon_threads(hanging: Hanging) -> None:
    maker = PromptMaker(TextOptions(render_deadline=0.02))
    with pytest.raises(OmlxdError):
        await chat(maker, hanging.tokenizer)
    assert [thread.daemon for thread in hanging.threads] == [True]


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
