"""Decoding by revision, without any call."""

import struct

import pytest

from omlxd.host.darwin_structs import (
    Failed,
    Filled,
    VmCounters,
    decode_graphics_footprint,
    decode_integer,
    decode_rusage_footprint,
    decode_swap_used,
    decode_task_footprint,
    decode_vm_counters,
)

PAGE = 16384


def vm_bytes(words: int = 38, **pages: int) -> Filled:
    at = {"free": 0, "active": 4, "inactive": 8, "wired": 12, "speculative": 92}
    at |= {"compressor": 128, "throttled": 132, "external": 136}
    data = bytearray(152)
    for name, count in pages.items():
        struct.pack_into("<I", data, at[name], count)
    return Filled(bytes(data[: 4 * words]), words)


def test_the_counters_are_pages_of_the_kernel() -> None:
    filled = vm_bytes(
        free=10, active=20, inactive=30, wired=40, compressor=5, external=12, throttled=3
    )
    assert decode_vm_counters(filled, PAGE) == VmCounters(
        free=10 * PAGE,
        active=20 * PAGE,
        inactive=30 * PAGE,
        wired=40 * PAGE,
        external=12 * PAGE,
        compressor=5 * PAGE,
    )


def test_speculative_pages_are_counted_as_free_and_not_again_as_external() -> None:
    """The kernel counts them in free_count and in external_page_count."""
    counters = decode_vm_counters(
        vm_bytes(free=100, inactive=50, active=400, external=200, speculative=40), PAGE
    )
    assert isinstance(counters, VmCounters)
    assert counters.free == 100 * PAGE
    assert counters.external == 160 * PAGE
    taken = counters.free + counters.inactive + max(0, counters.external - counters.inactive)
    # 60 really free, 40 speculative, 160 file-backed pages on the queues: each counts once.
    assert taken == (60 + 40 + 160) * PAGE


def test_more_speculative_than_external_pages_is_no_negative_size() -> None:
    counters = decode_vm_counters(vm_bytes(free=9, external=3, speculative=5), PAGE)
    assert isinstance(counters, VmCounters)
    assert counters.external == 0


def test_the_first_revision_has_no_external_and_no_compressor_pages() -> None:
    filled = vm_bytes(24, free=1, active=2, inactive=3, wired=4, external=99, compressor=99)
    counters = decode_vm_counters(filled, PAGE)
    assert isinstance(counters, VmCounters)
    assert counters.wired == 4 * PAGE
    assert counters.external is None
    assert counters.compressor is None


def test_an_answer_between_two_revisions_is_read_as_the_older_one() -> None:
    counters = decode_vm_counters(vm_bytes(37, free=1, external=9), PAGE)
    assert isinstance(counters, VmCounters)
    assert counters.external is None


@pytest.mark.parametrize("words", [0, 15, 23])
def test_an_answer_below_the_first_revision_is_a_failure(words: int) -> None:
    assert decode_vm_counters(vm_bytes(words), PAGE) == Failed(
        "host_statistics64", f"only {words} words filled"
    )


def test_an_answer_of_zeros_is_a_failure_and_not_a_full_machine() -> None:
    assert decode_vm_counters(vm_bytes(speculative=7), PAGE) == Failed(
        "host_statistics64", "an empty answer"
    )


def task_bytes(words: int, footprint: int = 0, graphics: int = 0) -> Filled:
    data = bytearray(372)
    struct.pack_into("<Q", data, 144, footprint)
    struct.pack_into("<q", data, 272, graphics)
    return Filled(bytes(data[: 4 * words]), words)


@pytest.mark.parametrize(
    ("words", "footprint", "graphics"),
    [
        (36, None, None),
        (38, 700, None),
        (42, 700, None),
        (83, 700, None),
        (84, 700, 500),
        (86, 700, 500),
    ],
)
def test_a_field_is_read_from_the_revision_that_has_it(
    words: int, footprint: int | None, graphics: int | None
) -> None:
    filled = task_bytes(words, footprint=700, graphics=500)
    assert decode_task_footprint(filled) == footprint
    assert decode_graphics_footprint(filled) == graphics


@pytest.mark.parametrize("value", [0, -16384])
def test_a_graphics_ledger_that_charges_nothing_is_unknown(value: int) -> None:
    assert decode_graphics_footprint(task_bytes(86, graphics=value)) is None


def test_rusage_and_swap_are_read_at_their_offsets() -> None:
    usage = struct.pack("<16s35Q", b"", *range(1, 36))
    assert len(usage) == 296
    assert decode_rusage_footprint(usage) == 8
    assert decode_rusage_footprint(usage[:96]) == 8
    assert decode_swap_used(struct.pack("<QQQIi", 10, 7, 3, PAGE, 1)) == 3


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (struct.pack("<i", 4), 4),
        (struct.pack("<i", -1), -1),
        (struct.pack("<Q", 512 * 1024**3), 512 * 1024**3),
        (b"", None),
        (b"\1\0", None),
    ],
)
def test_an_integer_has_four_or_eight_bytes(data: bytes, value: int | None) -> None:
    assert decode_integer(data) == value


def test_a_failure_reads_as_a_sentence() -> None:
    assert str(Failed("task_info", "kern_return 5")) == "task_info: kern_return 5"
