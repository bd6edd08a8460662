"""The official OpenAI SDK against the real daemon and a real model."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.integration.conftest import MakeDaemon
from tests.integration.daemon.test_cases import hung_up, phases
from tests.integration.daemon.test_life import ENDLESS, chat
from tests.support.daemon import DaemonProcess

QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
MODEL = "SmolLM2-135M-Instruct"


@pytest.fixture
def client(daemon: DaemonProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{daemon.url}/v1", api_key="none", timeout=120) as client:
        yield client


def test_a_chat_answers_sensibly(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=24
    )
    (choice,) = answer.choices
    assert "Paris" in (choice.message.content or "")
    assert choice.message.role == "assistant"
    assert choice.finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 0
    assert answer.id.startswith("chatcmpl-")
    assert answer.created > 0


def test_t35_a_streamed_chat_has_the_same_text_and_one_finish_reason(client: OpenAI) -> None:
    whole = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=48
    )
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=QUESTION,
            temperature=0,
            max_tokens=48,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert [r for r in reasons if r] == [whole.choices[0].finish_reason]
    assert reasons[-1] is not None
    assert [c.choices[0].delta.role for c in chunks if c.choices].count("assistant") == 1
    assert len({c.id for c in chunks}) == 1
    assert len({c.created for c in chunks}) == 1
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert all(c.usage is None for c in chunks[:-1])


def test_t35_a_natural_stop_says_stop(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Answer with one word: what is 1+1?"}],
        temperature=0,
        max_tokens=200,
    )
    assert answer.choices[0].finish_reason == "stop"
    assert "<|im_end|>" not in (answer.choices[0].message.content or "")


def test_completions_continue_a_text(client: OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="The capital of France is", temperature=0, max_tokens=8
    )
    assert "Paris" in answer.choices[0].text
    streamed = client.completions.create(
        model=MODEL, prompt="The capital of France is", temperature=0, max_tokens=8, stream=True
    )
    assert "".join(c.choices[0].text for c in streamed if c.choices) == answer.choices[0].text


def test_t55_the_same_prompt_twice_counts_the_same(client: OpenAI) -> None:
    counts = set()
    for _ in range(2):
        answer = client.chat.completions.create(
            model=MODEL, messages=QUESTION, temperature=0, max_tokens=5
        )
        assert answer.usage is not None
        counts.add((answer.usage.prompt_tokens, answer.usage.completion_tokens))
    assert len(counts) == 1
    assert counts.pop()[1] == 5


def test_a_seed_makes_an_answer_reproducible(client: OpenAI) -> None:
    def ask(seed: int) -> str | None:
        answer = client.chat.completions.create(
            model=MODEL, messages=QUESTION, temperature=1.5, max_tokens=8, seed=seed
        )
        return answer.choices[0].message.content

    first = ask(7)
    assert ask(7) == first
    assert {ask(8), ask(9)} != {first}


def test_log_probabilities_are_those_of_the_tokens(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        temperature=0,
        max_tokens=6,
        logprobs=True,
        top_logprobs=3,
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert "".join(t.token for t in logprobs.content) == answer.choices[0].message.content
    for token in logprobs.content:
        assert token.logprob <= 0
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob >= token.top_logprobs[-1].logprob
        # Greedy: the chosen token is the likeliest one.
        assert token.top_logprobs[0].logprob == pytest.approx(token.logprob)


def test_penalties_and_bias_act(client: OpenAI, daemon: DaemonProcess) -> None:
    plain = client.completions.create(
        model=MODEL, prompt="one two one two one two", temperature=0, max_tokens=8
    )
    first = client.completions.create(
        model=MODEL,
        prompt="one two one two one two",
        temperature=0,
        max_tokens=8,
        logprobs=1,
    )
    assert first.choices[0].text == plain.choices[0].text
    penalised = client.completions.create(
        model=MODEL,
        prompt="one two one two one two",
        temperature=0,
        max_tokens=8,
        presence_penalty=2.0,
        frequency_penalty=2.0,
        extra_body={"repetition_penalty": 2.0},
    )
    assert penalised.choices[0].text != plain.choices[0].text


def test_errors_have_the_classes_the_sdk_knows(client: OpenAI) -> None:
    patient = client.with_options(max_retries=0)
    with pytest.raises(openai.NotFoundError) as unknown:
        patient.chat.completions.create(model="nope", messages=QUESTION)
    assert unknown.value.code == "model_not_found"
    assert unknown.value.param == "model"
    assert unknown.value.request_id
    with pytest.raises(openai.BadRequestError) as tools:
        patient.chat.completions.create(
            model=MODEL,
            messages=QUESTION,
            tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}],
        )
    assert tools.value.param == "tools"
    with pytest.raises(openai.BadRequestError) as many:
        patient.chat.completions.create(model=MODEL, messages=QUESTION, n=3)
    assert many.value.param == "n"
    with pytest.raises(openai.BadRequestError) as hot:
        patient.chat.completions.create(model=MODEL, messages=QUESTION, temperature=-1)
    assert hot.value.param == "temperature"


def test_the_sdk_tries_again_where_it_is_told_to(make_daemon: MakeDaemon, tiny: Path) -> None:
    """A 503 with Retry-After while the queue is full, and then the answer, by its own retries."""
    daemon = make_daemon(models=(tiny,), config="[engine]\nmax_concurrent = 1\nmax_waiting = 1\n")

    def refused() -> list[dict[str, Any]]:
        return [r for r in daemon.events("http_request") if r["status"] == 503]

    with (
        OpenAI(base_url=f"{daemon.url}/v1", api_key="none", timeout=60, max_retries=20) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        with hung_up(daemon, chat(tiny, **ENDLESS)), hung_up(daemon, chat(tiny, **ENDLESS)):
            daemon.until(
                lambda: sorted(phases(daemon)) == ["decode", "queued"], "the queue is not full"
            )
            asked = pool.submit(
                lambda: client.chat.completions.create(
                    model=tiny.name, messages=QUESTION, max_tokens=2
                )
            )
            daemon.until(lambda: bool(refused()), "nothing is refused")
        answer = asked.result(120)
    assert answer.choices[0].finish_reason
    assert {record["path"] for record in refused()} == {"/v1/chat/completions"}


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "word " * 9000}]
        )
    assert caught.value.code == "context_length_exceeded"
    assert "8192" in str(caught.value)
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["context_length"] == 8192
    assert caught.value.body["prompt_tokens"] > 9000


def test_t57_t59_models_are_listed_with_created_and_their_real_context(client: OpenAI) -> None:
    listed = {model.id: model for model in client.models.list()}
    assert MODEL in listed
    for model in listed.values():
        assert model.created > 0
        assert model.object == "model"
        assert model.owned_by
    one = client.models.retrieve(MODEL)
    assert one.id == MODEL
    assert one.model_extra is not None
    assert one.model_extra["context_length"] == 8192


def test_content_may_be_parts_or_null(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "What is the capital"}]},
            {"role": "assistant", "content": None},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "of"},
                    {"type": "text", "text": "France?"},
                ],
            },
        ],
        temperature=0,
        max_tokens=12,
    )
    assert answer.choices[0].message.content


def test_stop_strings_end_the_answer_and_are_not_part_of_it(client: OpenAI) -> None:
    """T38"""
    whole = client.completions.create(
        model=MODEL, prompt="Count: 1, 2, 3,", temperature=0, max_tokens=24
    ).choices[0]
    assert "5" in whole.text
    stopped = client.completions.create(
        model=MODEL, prompt="Count: 1, 2, 3,", temperature=0, max_tokens=24, stop=["5"]
    ).choices[0]
    assert stopped.finish_reason == "stop"
    assert stopped.text == whole.text[: whole.text.index("5")]


def test_a_special_token_may_be_a_stop_string(client: OpenAI) -> None:
    """T38. The model is made to write one that would not end its answer."""
    im_start = "1"
    answer = client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        temperature=0,
        max_tokens=8,
        stop=["<|im_start|>"],
        logit_bias={im_start: 100},
    )
    assert answer.choices[0].finish_reason == "stop"
    assert not answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 1
