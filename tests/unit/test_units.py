import pytest

from omlxd.units import GiB, format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        (0, 0),
        ("100B", 100),
        ("512MB", 512 * 1024**2),
        ("1.5GiB", 3 * GiB // 2),
        (" 2 g ", 2 * GiB),
    ],
)
def test_sizes_are_read(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "-1", "12XB", "5\N{KELVIN SIGN}", "1e3", float("nan"), float("inf"), -1, True]
)
def test_what_is_no_size_is_refused(text: str | float) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_bytes(text)


@pytest.mark.parametrize("text", [24, 24.5, "24", " 24 ", 24 * GiB])
def test_a_number_without_a_unit_is_refused(text: str | float) -> None:
    """It would be in bytes, but the API's key with that name is in GB."""
    with pytest.raises(ValueError, match="give one, as in '24GB'"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["9" * 5000 + "GB", "9" * 400, 10**400])
def test_a_size_beyond_all_is_refused(text: str | int) -> None:
    with pytest.raises(ValueError, match="more than any size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0B"), (1023, "1023B"), (1536, "1.5KB"), (int(12.3 * GiB), "12.3GB"), (-GiB, "-1.0GB")],
)
def test_sizes_are_written(size: int, text: str) -> None:
    assert format_bytes(size) == text
