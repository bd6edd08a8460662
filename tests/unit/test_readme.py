"""``tests/README.md`` lists the cases that the docstrings of the tests cite, and no others."""

import re
from pathlib import Path

TESTS = Path(__file__).parent.parent
CASE = re.compile(r"\bT\d{2}\b")


def test_the_cases_in_the_readme_are_those_that_tests_cite() -> None:
    listed = set(re.findall(r"^\| (T\d{2}) \|", (TESTS / "README.md").read_text(), re.MULTILINE))
    cited = {case for path in TESTS.rglob("test_*.py") for case in CASE.findall(path.read_text())}
    assert listed == cited
