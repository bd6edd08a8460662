"""Deltas of the detokenizer against the whole text."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from omlxd.text.detokenize import Detokenizer, TokenPiece, token_piece
from omlxd.text.protocol import Joining
from tests.support.tokenizers import BOS, EOS, PieceTokenizer, cut

SCRIPTS = "Příliš žluťoučký kůň úpěl ďábelské ódy. 你好，世界。 こんにちは 😀 👨‍👩‍👧‍👦 🇨🇿 e\u0301"
EVERY_JOINING: tuple[Joining, ...] = ("bytes", "bytes_less_space", "context")

places = st.lists(st.integers(0, 10_000), max_size=60)
joinings = st.sampled_from(EVERY_JOINING)
texts = st.text(st.sampled_from("a \nřž你界😀\u200d👩\ufffd") | st.characters(codec="utf-8"))


def deltas(tokenizer: PieceTokenizer, tokens: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.push([token]) for token in tokens), detokenizer.finish()]


def begun(joining: Joining, text: str) -> str:
    return text if joining == "bytes" else text.removeprefix(" ")


@pytest.mark.parametrize("joining", EVERY_JOINING)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_czech_cjk_and_emoji_stream_as_they_are(joining: Joining, size: int) -> None:
    """T32: deltas joined equal the text, no U+FFFD in any of them."""
    tokenizer = PieceTokenizer(joining)
    data = SCRIPTS.encode()
    tokens = tokenizer.tokens([data[i : i + size] for i in range(0, len(data), size)])
    pieces = deltas(tokenizer, tokens)
    assert "".join(pieces) == SCRIPTS
    assert not any("\ufffd" in piece for piece in pieces)


@given(joinings, texts, places)
def test_deltas_joined_are_the_text_however_it_is_cut(
    joining: Joining, text: str, places: list[int]
) -> None:
    """T32."""
    # Without the bytes, a final U+FFFD looks the same as an unfinished character.
    assume(joining != "context" or not text.endswith("\ufffd"))
    tokenizer = PieceTokenizer(joining)
    tokens = tokenizer.tokens(cut(text.encode(), places))
    assert "".join(deltas(tokenizer, tokens)) == begun(joining, text)


@given(texts, places)
def test_a_character_is_sent_with_the_token_that_completes_it(text: str, places: list[int]) -> None:
    tokenizer = PieceTokenizer("bytes")
    pieces = cut(text.encode(), places)
    detokenizer = Detokenizer(tokenizer)
    so_far, sent = b"", ""
    for piece in pieces:
        so_far += piece
        sent += detokenizer.push(tokenizer.tokens([piece]))
        assert sent == so_far.decode(errors="ignore")


def incomplete(data: bytes) -> bool:
    """Whether ``data`` ends inside a character."""
    for size in (1, 2, 3):
        try:
            data[-size:].decode()
        except UnicodeDecodeError as error:
            if error.start == 0 and error.reason == "unexpected end of data":
                return True
    return False


noise = st.lists(
    st.sampled_from([b"\xff", b"\xc5", b"\x99", b"\xe2\x82", b"\xac", b"\xf0\x9f", b"a", b" "])
    | st.binary(min_size=1, max_size=4),
    max_size=60,
)


@given(noise)
def test_invalid_bytes_show_as_replacements_and_the_unfinished_end_is_dropped(
    pieces: list[bytes],
) -> None:
    """T32: no exception on invalid bytes."""
    tokenizer = PieceTokenizer("bytes")
    data = b"".join(pieces)
    whole = data.decode(errors="replace")
    expected = whole[:-1] if incomplete(data) else whole
    assert "".join(deltas(tokenizer, tokenizer.tokens(pieces))) == expected


@given(noise)
def test_a_window_of_invalid_bytes_loses_nothing_but_the_unfinished_end(
    pieces: list[bytes],
) -> None:
    tokenizer = PieceTokenizer("context")
    whole = b"".join(pieces).removeprefix(b" ").decode(errors="replace")
    sent = "".join(deltas(tokenizer, tokenizer.tokens(pieces)))
    assert whole.startswith(sent)
    assert set(whole[len(sent) :]) <= {"\ufffd"}


@pytest.mark.parametrize("joining", EVERY_JOINING)
def test_invalid_bytes_never_stall_the_stream(joining: Joining) -> None:
    tokenizer = PieceTokenizer(joining)
    detokenizer = Detokenizer(tokenizer)
    sent = detokenizer.push(tokenizer.tokens([b"\xff"] * 200))
    assert len(sent) >= 190
    sent += detokenizer.push(tokenizer.tokens([b"\xe2\x82", b"\xac"]))
    assert sent == "\ufffd" * 200 + "€"


@pytest.mark.parametrize("joining", EVERY_JOINING)
def test_incomplete_bytes_at_the_end_are_dropped(joining: Joining) -> None:
    tokenizer = PieceTokenizer(joining)
    assert "".join(deltas(tokenizer, tokenizer.tokens([b"ok", b"\xf0\x9f", b"\x98"]))) == "ok"


@pytest.mark.parametrize("joining", EVERY_JOINING)
def test_white_space_alone_is_sent(joining: Joining) -> None:
    """T37."""
    tokenizer = PieceTokenizer(joining)
    pieces = deltas(tokenizer, tokenizer.tokens([b"x:", b"\n\n", b"    ", b"\t", b"y"]))
    assert pieces == ["x:", "\n\n", "    ", "\t", "y", ""]


@pytest.mark.parametrize("joining", EVERY_JOINING)
def test_special_tokens_have_no_text_even_inside_a_character(joining: Joining) -> None:
    tokenizer = PieceTokenizer(joining)
    first, second = tokenizer.tokens([b"\xc5", b"\x99"])
    assert deltas(tokenizer, [BOS, first, EOS, second, EOS]) == ["", "", "", "ř", "", ""]


@pytest.mark.parametrize("joining", ["bytes_less_space", "context"])
def test_a_completion_keeps_the_space_before_its_first_word(joining: Joining) -> None:
    tokenizer = PieceTokenizer(joining)
    hello, world = tokenizer.tokens([b"Hello", b" world"])
    assert Detokenizer(tokenizer, prompt=[BOS, hello]).push([world]) == " world"
    assert Detokenizer(tokenizer).push([world]) == "world"
    assert Detokenizer(tokenizer, prompt=[BOS]).push([world]) == "world"


def test_a_completion_may_complete_the_last_character_of_its_prompt() -> None:
    tokenizer = PieceTokenizer("bytes")
    prompt = tokenizer.tokens([b"a", b"\xc5"])
    assert Detokenizer(tokenizer, prompt=prompt).push(tokenizer.tokens([b"\x99x"])) == "řx"


def test_the_cost_of_a_token_does_not_grow_with_the_answer() -> None:
    tokenizer = PieceTokenizer("context")
    detokenizer = Detokenizer(tokenizer)
    half_characters = tokenizer.tokens([b"\xe4\xbd", b"\xa0\xe4\xbd"])
    detokenizer.push([half_characters[0], *[half_characters[1]] * 2_000])
    assert tokenizer.longest_decode <= 24


def test_a_token_that_ends_inside_a_character_is_pending() -> None:
    tokenizer = PieceTokenizer("bytes")
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push(tokenizer.tokens([b"a\xc5"])) == "a"
    assert detokenizer.pending
    assert detokenizer.push(tokenizer.tokens([b"\x99"])) == "ř"
    assert not detokenizer.pending


def test_a_part_of_a_character_shows_its_real_bytes() -> None:
    tokenizer = PieceTokenizer()
    half, whole = tokenizer.tokens([b"a\xe2\x82", " ř".encode()])
    assert token_piece(tokenizer, half) == TokenPiece("a\\xe2\\x82", b"a\xe2\x82")
    assert token_piece(tokenizer, whole) == TokenPiece(" ř", b" \xc5\x99")


def test_a_special_token_shows_its_name() -> None:
    assert token_piece(PieceTokenizer(), EOS) == TokenPiece("</s>", b"</s>")
