"""The table from errors to HTTP."""

import inspect
import json

import pytest

from omlxd import errors
from omlxd.api.errors import TABLE, error_body, error_headers, error_response, field_name, meaning


def test_every_error_has_its_row() -> None:
    kinds = {
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.OmlxdError)
    }
    assert kinds == set(TABLE)


@pytest.mark.parametrize(
    ("error", "status", "retry_after", "should_retry"),
    [
        (errors.ContextTooLargeForMemory("x"), 400, None, "false"),
        (errors.ModelTooLarge("x"), 507, None, "false"),
        (errors.MemoryPressure("x", retry_after=4.2), 503, "5", "true"),
        (errors.MemoryPressureAborted("x", retry_after=0.1), 503, "1", "true"),
        (errors.InsufficientMemory("x", retry_after=7), 507, "7", "true"),
        (errors.InsufficientMemory("x", retry_after=None), 507, None, "false"),
    ],
)
def test_memory_errors_answer_as_guard_md_8_says(
    error: errors.OmlxdError, status: int, retry_after: str | None, should_retry: str | None
) -> None:
    assert meaning(error).status == status
    assert error_headers(error).get("retry-after") == retry_after
    assert error_headers(error).get("x-should-retry") == should_retry


def test_clients_find_the_four_keys_and_the_facts() -> None:
    error = errors.InvalidRequest("bad", param="n", allowed=[1])
    assert json.loads(error_body(error)) == {
        "error": {
            "message": "bad",
            "type": "invalid_request_error",
            "param": "n",
            "code": "invalid_value",
            "allowed": [1],
        }
    }


def test_facts_never_replace_a_key() -> None:
    error = errors.OmlxdError("right", type="wrong", code="wrong")
    body = json.loads(error_body(error))["error"]
    assert (body["message"], body["type"], body["code"]) == (
        "right",
        "server_error",
        "internal_error",
    )


def test_a_lone_surrogate_in_a_message_does_not_break_the_answer() -> None:
    assert error_response(errors.ModelNotFound("\ud800")).status_code == 404


def test_field_names_read_as_the_client_wrote_them() -> None:
    assert field_name(("body", "messages", 0, "content", "<list>", 1, "text")) == (
        "messages[0].content[1].text"
    )
    assert field_name(("body", "logit_bias", "x", "[key]")) == "logit_bias.x"
    assert field_name(("body",)) is None
    assert field_name(("body", "logit_bias", "9" * 4000)) == f"logit_bias.{'9' * 64}"
