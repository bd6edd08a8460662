"""Stop strings against a search in the whole text."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from omlxd.text.stops import Passed, StopStrings, stop_ids
from tests.support.tokenizers import EOS, PieceTokenizer, cut


def stream(stops: list[str], pieces: list[str]) -> tuple[list[str], str | None]:
    """What was sent, piece by piece, and what matched."""
    strings = StopStrings(stops)
    sent = []
    for piece in pieces:
        passed = strings.push(piece)
        sent.append(passed.text)
        if passed.matched is not None:
            return sent, passed.matched
    return [*sent, strings.finish()], None


def naive(stops: list[str], text: str) -> tuple[str, str | None]:
    for end in range(len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


few_letters = st.text(st.sampled_from("ab\nř😀"), max_size=40)
stop_lists = st.lists(st.text(st.sampled_from("ab\nř😀"), min_size=1, max_size=6), max_size=4)
places = st.lists(st.integers(0, 10_000), max_size=30)


@settings(max_examples=max(200, settings().max_examples))
@given(stop_lists, few_letters, places)
@example(["abab", "b"], "aabab", [1, 2, 3, 4])
@example(["aab"], "aaab", [1, 2, 3])
def test_any_cut_gives_what_a_search_in_the_whole_text_gives(
    stops: list[str], text: str, places: list[int]
) -> None:
    """T38: no part of the stop string is sent, for any pieces; near misses are sent in full."""
    sent, matched = stream(stops, cut(text, places))
    assert ("".join(sent), matched) == naive(stops, text)


@given(stop_lists, few_letters)
def test_only_what_may_begin_a_stop_string_is_held_back(stops: list[str], text: str) -> None:
    cut_text, matched = naive(stops, text)
    if matched is not None:
        text = cut_text
    strings = StopStrings(stops)
    sent = strings.push(text).text
    beginnings = [
        size
        for size in range(len(text) + 1)
        if any(
            stop.startswith(text[len(text) - size :]) for stop in [*stops, ""] if size <= len(stop)
        )
    ]
    assert sent == text[: len(text) - max(beginnings)]


def test_a_stop_string_split_over_tokens_is_never_sent() -> None:
    """T38."""
    pieces = ["Fine.", "\n", "\nUs", "er", ":", " more"]
    assert stream(["\n\nUser:"], pieces) == (["Fine.", "", "", "", ""], "\n\nUser:")


def test_a_near_miss_is_sent_in_full() -> None:
    """T38."""
    sent, matched = stream(["\n\nUser:"], ["Fine.", "\n", "\nUs", "age", " is"])
    assert (sent, matched) == (["Fine.", "", "", "\n\nUsage", " is", ""], None)


def test_a_stop_string_of_many_bytes_works() -> None:
    """T38."""
    assert stream(["🛑konec"], ["Ahoj 🛑", "kon", "ec"]) == (["Ahoj ", "", ""], "🛑konec")


def test_text_held_at_the_end_is_sent() -> None:
    assert stream(["\n\nUser:"], ["Fine.", "\n\nUs"]) == (["Fine.", "", "\n\nUs"], None)


def test_the_longest_of_those_complete_at_once_matches() -> None:
    assert stream(["b", "ab"], ["xab"]) == (["x"], "ab")


def test_the_first_complete_matches_whatever_piece_it_comes_in() -> None:
    assert stream(["abc", "b"], ["xabc"]) == (["xa"], "b")


def test_nothing_passes_after_a_match() -> None:
    strings = StopStrings(["."])
    assert strings.push("a. b") == Passed("a", ".")
    assert strings.push(" c") == Passed("", ".")
    assert strings.finish() == ""


def test_without_stop_strings_nothing_is_held() -> None:
    assert StopStrings([]).push("\n") == Passed("\n")


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["a", ""])


def test_a_stop_string_that_names_a_special_token_stops_at_its_id() -> None:
    tokenizer = PieceTokenizer()
    assert stop_ids(tokenizer, ["</s>", "s"]) == {EOS}
    assert stop_ids(tokenizer, ["</s", "</s>."]) == frozenset()
    assert stop_ids(tokenizer, ["\ud800"]) == frozenset()
    assert stop_ids(tokenizer, []) == frozenset()


def test_a_long_repetitive_stop_string_costs_linear_time() -> None:
    """A matcher that retries from each position would take minutes."""
    stop = "a" * 50_000 + "b"
    sent, matched = stream([stop], ["a" * 1_000] * 200)
    assert ("".join(sent), matched) == ("a" * 200_000, None)
