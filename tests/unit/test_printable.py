"""The printable form of foreign names and texts."""

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
        ("to\u2066 and fro\u2028", r"to\u2066 and fro\u2028"),
        ("\xa0\u3000\u200b\ue000\U000e0041", "\xa0\u3000\u200b\ue000\U000e0041"),
        ("\U0001f469\u200d\U0001f4bb", "\U0001f469\u200d\U0001f4bb"),
    ],
)
def test_only_what_is_no_character_of_its_own_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert shown.encode().decode() == shown
