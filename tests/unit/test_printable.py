"""What names and texts from elsewhere become."""

import pytest

from omlxd.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("org/Größe-7b 模型", "org/Größe-7b 模型"),
        ("half \ud800 of one", r"half \ud800 of one"),
        ("bad\udcff", r"bad\udcff"),
        ("\x1b[2Jgone\n\x7f\x9b", r"\x1b[2Jgone\n\x7f\x9b"),
        ("\u202eback", r"\u202eback"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_only_what_is_no_character_of_its_own_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert shown.encode().decode() == shown
