"""Parameters that are not implemented: one that would change the answer is refused by name."""

import pytest

from omlxd.api.openai.unsupported import CHAT, COMPLETIONS, IGNORED, REFUSED, refuse_unsupported
from omlxd.errors import UnsupportedParameter


@pytest.mark.parametrize(
    "extra",
    [
        {"repeat_penalty": 2.0},
        {"max_new_tokens": 5},
        {"n_predict": 5},
        {"num_predict": 5},
        {"no_repeat_ngram_size": 3},
        {"regex": "a+"},
        {"ebnf": "root ::= 'a'"},
        {"format": "json"},
        {"format": {"type": "object"}},
        {"options": {"temperature": 0}},
        {"top_n_sigma": 1.5},
        {"mirostat_mode": 2},
        {"samplers": ["top_k"]},
        {"typical": 0.5},
        {"repetition_context_size": 20},
        {"do_sample": False},
        {"num_beams": 4},
        {"stop_sequences": ["x"]},
        {"stop_words": ["x"]},
        {"no_stop_trim": True},
        {"extra_body": {"top_k": 1}},
    ],
)
def test_what_other_servers_call_it_is_refused_by_name_as_well(extra: dict[str, object]) -> None:
    (name,) = extra
    with pytest.raises(UnsupportedParameter, match=f"'{name}'") as caught:
        refuse_unsupported({"unheard_of": 1, **extra})
    assert caught.value.param == name


@pytest.mark.parametrize("name", REFUSED)
def test_a_value_that_changes_nothing_passes(name: str) -> None:
    for value in (None, *REFUSED[name]):
        refuse_unsupported({name: value})


def test_no_name_is_both_refused_and_ignored() -> None:
    assert not IGNORED & REFUSED.keys()


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"echo": True}, "(only false is accepted)"),
        ({"response_format": {"type": "json_object"}}, '(only {"type": "text"} is accepted)'),
        ({"tool_choice": "required"}, '(only "none" or "auto" is accepted)'),
        ({"regex": "a"}, "'regex' is not supported by this server."),
    ],
)
def test_a_refusal_speaks_json(extra: dict[str, object], said: str) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        refuse_unsupported(extra)
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("refused", "same", "other"),
    [
        (CHAT, {"add_special_tokens": False}, {"add_special_tokens": True}),
        (COMPLETIONS, {"add_special_tokens": True}, {"add_special_tokens": False}),
        (COMPLETIONS, {"top_logprobs": 0}, {"top_logprobs": 3}),
    ],
)
def test_what_an_endpoint_does_anyway_may_be_said(
    refused: dict[str, tuple[object, ...]], same: dict[str, object], other: dict[str, object]
) -> None:
    refuse_unsupported(same, refused)
    with pytest.raises(UnsupportedParameter):
        refuse_unsupported(other, refused)


@pytest.mark.parametrize("extra", [{"n": True}, {"top_a": False}, {"echo": 0}])
def test_true_is_no_number_and_a_number_is_not_true(extra: dict[str, object]) -> None:
    with pytest.raises(UnsupportedParameter):
        refuse_unsupported(extra)
