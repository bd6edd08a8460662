import re
from pathlib import Path

HERE = Path(__file__).parent


def test_every_test_of_the_table_exists() -> None:
    """The table of rules must not name a test that is gone."""
    named = set(re.findall(r"`(test_\w+)`", (HERE / "README.md").read_text()))
    code = "".join(path.read_text() for path in HERE.glob("test_*.py"))
    assert len(named) > 60
    assert named <= set(re.findall(r"def (test_\w+)\(", code))
