import re
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent.parent


def test_every_test_of_the_table_exists() -> None:
    """The table of rules must not name a test that is gone."""
    text = (HERE / "README.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", text))
    folders = [HERE, *(ROOT / folder for folder in re.findall(r"`(tests/unit/\w+)`", text))]
    files = [path for folder in folders for path in folder.glob("test_*.py")]
    files += [ROOT / file for file in re.findall(r"`(tests/unit/\w+\.py)`", text)]
    code = "".join(path.read_text() for path in files)
    assert len(named) > 60
    assert named <= set(re.findall(r"def (test_\w+)\(", code))
