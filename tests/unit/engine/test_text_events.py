"""The text of a generation: deltas, stop strings, counts, and exactly one end."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlxd.backend.sequence import FinishReason, NewToken
from omlxd.engine.generation import PromptProgress, TokensArrived
from omlxd.engine.text_events import GenerationEnd, TextDelta, TextEvent, text_events
from omlxd.errors import GenerationFailed
from omlxd.text.detokenize import Detokenizer
from omlxd.text.protocol import Joining
from omlxd.text.stops import StopStrings
from tests.support.fake_generation import FakeGeneration, ScriptStep, a_sequence
from tests.support.tokenizers import BOS, EOS, PieceTokenizer, cut

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def playing(*script: ScriptStep) -> FakeGeneration:
    """A generation with a prompt of 7 tokens, 3 of them cached."""
    generation = FakeGeneration(a_sequence(prompt=range(7)), script)
    generation.cached_tokens = 3
    return generation


def arrivals(
    tokens: Sequence[int], finish: FinishReason | None = LENGTH, *, together: int = 1
) -> list[TokensArrived]:
    """``tokens`` in events of ``together``; the last has ``finish``."""
    new = [
        NewToken(token, logprob=-float(i), finish=finish if i == len(tokens) - 1 else None)
        for i, token in enumerate(tokens)
    ]
    return [TokensArrived(tuple(new[i : i + together])) for i in range(0, len(new), together)]


async def collect(
    generation: FakeGeneration, tokenizer: PieceTokenizer, stops: Sequence[str] = ()
) -> list[TextEvent]:
    stream = text_events(generation, Detokenizer(tokenizer), StopStrings(stops))
    return [item async for item in stream]


def text_of(items: Sequence[TextEvent]) -> str:
    return "".join(item.text for item in items if isinstance(item, TextDelta))


def pieces_of(items: Sequence[TextEvent], tokenizer: PieceTokenizer) -> list[list[bytes]]:
    return [
        [tokenizer.token_bytes(token.token) for token in item.tokens]
        for item in items
        if isinstance(item, TextDelta)
    ]


async def test_a_natural_stop_ends_once_without_the_stop_token() -> None:
    """T35, T55: one end; the stop token counts and has no text."""
    tokenizer = PieceTokenizer()
    tokens = [*tokenizer.tokens([b"Hi", b" there"]), EOS]
    items = await collect(playing(PromptProgress(4, 7, 3), *arrivals(tokens, STOP)), tokenizer)
    assert items == [
        PromptProgress(4, 7, 3),
        TextDelta("Hi", (NewToken(tokens[0], logprob=-0.0),), (0,)),
        TextDelta(" there", (NewToken(tokens[1], logprob=-1.0),), (2,)),
        GenerationEnd(STOP, None, prompt_tokens=7, completion_tokens=3, cached_tokens=3),
    ]


async def test_a_stop_token_that_is_an_ordinary_piece_has_no_text_either() -> None:
    tokenizer = PieceTokenizer()
    items = await collect(playing(*arrivals(tokenizer.tokens([b"Hi", b"###"]), STOP)), tokenizer)
    assert text_of(items) == "Hi"


async def test_the_last_token_of_the_length_limit_has_its_text() -> None:
    """T55: the last token counts."""
    tokenizer = PieceTokenizer()
    items = await collect(playing(*arrivals(tokenizer.tokens([b"a", b"b"]))), tokenizer)
    assert text_of(items) == "ab"
    assert items[-1] == GenerationEnd(LENGTH, None, 7, 2, 3)


async def test_white_space_deltas_are_kept() -> None:
    """T37."""
    tokenizer = PieceTokenizer()
    tokens = tokenizer.tokens([b"if x:", b"\n\n", b"    ", b"y"])
    items = await collect(playing(*arrivals(tokens)), tokenizer)
    deltas = [item.text for item in items if isinstance(item, TextDelta)]
    assert deltas == ["if x:", "\n\n", "    ", "y"]


@pytest.mark.parametrize("together", [1, 2, 6])
async def test_a_stop_string_cancels_at_once_and_is_never_sent(together: int) -> None:
    """T38, T55: tokens count up to the one that completed the stop string."""
    tokenizer = PieceTokenizer()
    tokens = tokenizer.tokens([b"Fine.", b"\n", b"\nUs", b"er: x", b" more", b" and more"])
    generation = playing(*arrivals(tokens, together=together))
    items = await collect(generation, tokenizer, ["\n\nUser:"])
    assert text_of(items) == "Fine."
    assert items[-1] == GenerationEnd(STOP, "\n\nUser:", 7, 4, 3)
    assert generation.cancelled
    assert generation.read == {1: 4, 2: 2, 6: 1}[together]


async def test_the_generation_is_cancelled_before_the_reader_takes_the_last_delta() -> None:
    tokenizer = PieceTokenizer()
    generation = playing(*arrivals(tokenizer.tokens([b"a. b", b"c"])))
    async with aclosing(
        text_events(generation, Detokenizer(tokenizer), StopStrings(["."]))
    ) as stream:
        assert await anext(stream) == TextDelta("a", (), ())
        assert generation.cancelled


async def test_a_near_miss_is_sent_in_full_with_its_tokens() -> None:
    """T38."""
    tokenizer = PieceTokenizer()
    pieces = [b"Fine.", b"\n", b"\nUs", b"age", b" is"]
    items = await collect(playing(*arrivals(tokenizer.tokens(pieces))), tokenizer, ["\n\nUser:"])
    assert text_of(items) == "Fine.\n\nUsage is"
    assert pieces_of(items, tokenizer) == [[b"Fine."], [b"\n", b"\nUs", b"age"], [b" is"]]


@pytest.mark.parametrize(("last", "finish"), [(EOS, STOP), (None, LENGTH)])
async def test_held_text_is_sent_at_the_end(last: int | None, finish: FinishReason) -> None:
    tokenizer = PieceTokenizer()
    tokens = tokenizer.tokens([b"Fine.", b"\n\nUs"]) + ([] if last is None else [last])
    items = await collect(playing(*arrivals(tokens, finish)), tokenizer, ["\n\nUser:"])
    assert text_of(items) == "Fine.\n\nUs"
    assert pieces_of(items, tokenizer) == [[b"Fine."], [b"\n\nUs"]]
    assert items[-1] == GenerationEnd(finish, None, 7, len(tokens), 3)


async def test_a_stop_string_on_the_last_allowed_token_is_a_stop() -> None:
    tokenizer = PieceTokenizer()
    items = await collect(playing(*arrivals(tokenizer.tokens([b"a", b"."]))), tokenizer, ["."])
    assert items[-1] == GenerationEnd(STOP, ".", 7, 2, 3)


async def test_tokens_come_with_the_delta_that_shows_all_of_their_text() -> None:
    tokenizer = PieceTokenizer()
    pieces = [b"a\xe2", b"\x82", b"\xac", b"b"]
    items = await collect(playing(*arrivals(tokenizer.tokens(pieces))), tokenizer)
    assert [item.text for item in items if isinstance(item, TextDelta)] == ["a", "€", "b"]
    assert pieces_of(items, tokenizer) == [[], [b"a\xe2", b"\x82", b"\xac"], [b"b"]]


async def test_tokens_cut_by_a_stop_string_are_not_shown() -> None:
    """T38: not in the log probabilities either."""
    tokenizer = PieceTokenizer()
    tokens = tokenizer.tokens([b"one", b" two S", b"TOP", b"x"])
    items = await collect(playing(*arrivals(tokens)), tokenizer, ["STOP"])
    assert text_of(items) == "one two "
    assert pieces_of(items, tokenizer) == [[b"one"], []]


async def test_special_tokens_count_but_are_not_shown() -> None:
    tokenizer = PieceTokenizer()
    tokens = [BOS, *tokenizer.tokens([b"a"]), BOS]
    items = await collect(playing(*arrivals(tokens)), tokenizer)
    assert pieces_of(items, tokenizer) == [[b"a"]]
    assert items[-1] == GenerationEnd(LENGTH, None, 7, 3, 3)


async def test_an_answer_of_only_a_stop_token_is_empty_and_ends() -> None:
    tokenizer = PieceTokenizer()
    items = await collect(playing(*arrivals([EOS], STOP)), tokenizer)
    assert items == [GenerationEnd(STOP, None, 7, 1, 3)]


async def test_an_error_comes_after_the_text_and_without_an_end() -> None:
    """T34."""
    tokenizer = PieceTokenizer()
    generation = playing(
        *arrivals(tokenizer.tokens([b"a"]), None), GenerationFailed("the step failed")
    )
    items: list[TextEvent] = []

    async def read() -> None:
        async for item in text_events(generation, Detokenizer(tokenizer), StopStrings([])):
            items.append(item)

    with pytest.raises(GenerationFailed, match="the step failed"):
        await read()
    assert text_of(items) == "a"
    assert not any(isinstance(item, GenerationEnd) for item in items)


async def test_a_generation_that_others_cancelled_never_looks_finished() -> None:
    tokenizer = PieceTokenizer()
    with pytest.raises(GenerationFailed, match="cancelled"):
        await collect(playing(*arrivals(tokenizer.tokens([b"a"]), None)), tokenizer)


async def test_a_reader_that_leaves_cancels_the_generation() -> None:
    """T42."""
    tokenizer = PieceTokenizer()
    generation = playing(*arrivals(tokenizer.tokens([b"a", b"b"])))
    async with aclosing(text_events(generation, Detokenizer(tokenizer), StopStrings([]))) as stream:
        await anext(stream)
    assert generation.cancelled
    assert generation.read == 1


places = st.lists(st.integers(0, 10_000), max_size=30)


@given(
    text=st.text(st.sampled_from("ab\nř😀"), min_size=1, max_size=30),
    stops=st.lists(st.text(st.sampled_from("ab\nř"), min_size=1, max_size=4), max_size=3),
    places=places,
    together=st.integers(1, 5),
)
def test_any_answer_is_the_text_before_the_stop_and_its_tokens_are_its_beginning(
    text: str, stops: list[str], places: list[int], together: int
) -> None:
    """T32, T38, T55."""
    tokenizer = PieceTokenizer()
    pieces = cut(text.encode(), places)
    events = arrivals(tokenizer.tokens(pieces), together=together)
    items = asyncio.run(collect(playing(*events), tokenizer, stops))

    ends = [(text.index(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    end, size, matched = min(ends, default=(len(text), 0, None))
    expected = text[: end + size]
    assert text_of(items) == expected

    used, seen = 0, b""
    while len(seen) < len(text[:end].encode()):
        seen += pieces[used]
        used += 1
    assert items[-1] == GenerationEnd(LENGTH if matched is None else STOP, matched, 7, used, 3)
    assert sum(isinstance(item, GenerationEnd) for item in items) == 1

    shown = [piece for delta in pieces_of(items, tokenizer) for piece in delta]
    assert pieces[: len(shown)] == shown
    assert expected.encode().startswith(b"".join(shown))
    if matched is None:
        assert shown == pieces


noise = st.lists(
    st.sampled_from([b"\xff", b"\xc5", b"\x99", b"\xe2\x82", b"\xac", b"\xf0\x9f", b"a", b" b"])
    | st.binary(min_size=1, max_size=4)
    | st.text("xř😀", min_size=1, max_size=3).map(str.encode),
    min_size=1,
    max_size=40,
)


@given(joining=st.sampled_from(["bytes", "bytes_less_space", "context"]), pieces=noise)
def test_the_text_of_each_token_is_found_where_it_is_said_to_begin(
    joining: Joining, pieces: list[bytes]
) -> None:
    tokenizer = PieceTokenizer(joining)
    tokens = tokenizer.tokens(pieces)
    items = asyncio.run(collect(playing(*arrivals(tokens, together=2)), tokenizer))
    text = text_of(items)
    deltas = [item for item in items if isinstance(item, TextDelta)]
    starts = [start for item in deltas for start in item.starts]
    assert starts == sorted(starts)
    for piece, start in zip(pieces, starts, strict=False):
        if piece.decode(errors="ignore").encode() == piece and "\ufffd".encode() not in piece:
            expected = piece.decode()
            if start == 0 and joining != "bytes" and not text.startswith(expected):
                expected = expected.removeprefix(" ")
            assert text[start : start + len(expected)] == expected


async def test_a_token_begins_behind_the_bytes_that_it_shows_to_be_invalid() -> None:
    tokenizer = PieceTokenizer()
    pieces = [b"\xe2", b"|", b"filler", b"\xff", b"x"]
    items = await collect(playing(*arrivals(tokenizer.tokens(pieces))), tokenizer)
    assert text_of(items) == "\ufffd|filler\ufffdx"
    starts = [item.starts for item in items if isinstance(item, TextDelta)]
    assert starts == [(0, 1), (2,), (8,), (9,)]


async def test_a_completion_that_ends_a_character_of_its_prompt_begins_in_it() -> None:
    tokenizer = PieceTokenizer()
    prompt, last, more = tokenizer.tokens([b"\xf0\x9f", b"\x98\x80", b"x"])
    detokenizer = Detokenizer(tokenizer, prompt=[prompt])
    stream = text_events(playing(*arrivals([last, more])), detokenizer, StopStrings([]))
    starts = [item.starts async for item in stream if isinstance(item, TextDelta)]
    assert starts == [(0,), (1,)]
