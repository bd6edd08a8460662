"""The text of a failure, and which failures of the device end the process."""

import pytest

from omlxd.backend.mlx.backend import raise_if_device_lost, reason_of
from omlxd.errors import EngineDied

METAL = "[METAL] Command buffer execution failed: "


def test_a_gpu_that_ignores_the_process_is_lost() -> None:
    text = (
        METAL + "Ignored (for causing prior/excessive GPU errors) "
        "(00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)"
    )
    with pytest.raises(EngineDied, match="refuses all further work"):
        raise_if_device_lost(RuntimeError(text))


@pytest.mark.parametrize(
    "text",
    [
        METAL + "Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
        METAL + "Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)",
        "shapes (1,2) and (3) cannot be broadcast",
    ],
)
def test_any_other_failure_is_its_requests_own(text: str) -> None:
    raise_if_device_lost(RuntimeError(text))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("two\n  lines.", "ValueError: two lines"),
        ("x" * 1000, "ValueError: " + "x" * 500),
        ("", "ValueError"),
    ],
)
def test_a_reason_is_one_line_and_not_without_end(text: str, reason: str) -> None:
    assert reason_of(ValueError(text)) == reason
