"""The Pythons that a service may use."""

from dataclasses import replace

import pytest

from omlxd.service.interpreter import Interpreter, current_interpreter, problems

GOOD = Interpreter(
    executable="/Users/ann/.local/share/uv/tools/omlxd/bin/python",
    exists=True,
    prefix="/Users/ann/.local/share/uv/tools/omlxd",
    base="/Users/ann/.local/share/uv/python/cpython-3.12-macos-aarch64-none",
    system="Darwin",
    machine="arm64",
    user_home="/Users/ann",
    project=None,
    throwaway=("/Users/ann/.cache/uv", "/tmp"),
)


@pytest.mark.parametrize(
    "executable",
    [
        GOOD.executable,
        "/Users/ann/Library/Application Support/pipx/venvs/omlxd/bin/python",
        "/opt/homebrew/opt/python@3.12/bin/python3.12",
        "/Library/Frameworks/Python.framework/Versions/3.12/bin/python3",
    ],
)
def test_lasting_places_are_fine(executable: str) -> None:
    assert problems(replace(GOOD, executable=executable)) == ()


@pytest.mark.parametrize(
    ("change", "says", "final"),
    [
        (
            {"executable": "/Users/ann/.cache/uv/archive-v0/Xy/bin/python"},
            "uv tool install omlxd",
            False,
        ),
        ({"executable": "/srv/cache/environments-v2/omlxd/bin/python"}, "uvx", False),
        ({"executable": "/tmp/venv/bin/python"}, "cleaned by others", False),
        (
            {"executable": "/opt/homebrew/Cellar/python@3.12/3.12.4/bin/python3"},
            "vanishes with the next upgrade of python@3.12",
            False,
        ),
        ({"base": "/opt/homebrew/Cellar/python@3.12/3.12.4/Frameworks"}, "version folder", False),
        ({"executable": "/opt/homebrew/opt/omlxd/libexec/bin/python"}, "brew services", True),
        (
            {"executable": "/opt/homebrew/Cellar/omlxd/1.0/libexec/bin/python"},
            "brew services",
            True,
        ),
        ({"executable": "/Volumes/Big/venv/bin/python"}, "external volume", True),
        ({"resolved": ("/usr/bin/python3", "/Volumes/Big/venv")}, "external volume", True),
        ({"executable": "/Users/ann/Documents/venv/bin/python"}, "keeps background", False),
        ({"project": "/Users/ann/src/omlxd"}, "--force", False),
        ({"machine": "x86_64"}, "Rosetta", True),
        ({"executable": "", "exists": False}, "no usable path", True),
        ({"executable": "python3"}, "no usable path", True),
    ],
)
def test_what_vanishes_or_cannot_work_is_refused(
    change: dict[str, object], says: str, final: bool
) -> None:
    found = problems(replace(GOOD, **change))  # type: ignore[arg-type]
    assert says in found[0].text
    assert found[0].final is final


def test_a_neighbour_of_a_cache_is_no_cache() -> None:
    assert problems(replace(GOOD, executable="/Users/ann/.cache/uv-envs/bin/python")) == ()


def test_intel_python_is_fine_where_there_is_no_rosetta() -> None:
    assert problems(replace(GOOD, system="Linux", machine="x86_64")) == ()


def test_the_worst_comes_first() -> None:
    both = problems(replace(GOOD, project="/src/omlxd", machine="x86_64"))
    assert [o.final for o in both] == [True, False]


def test_looking_keeps_symbolic_links() -> None:
    import sys

    assert current_interpreter({}).executable == sys.executable


def test_an_editable_installation_is_seen() -> None:
    """These tests run from a clone."""
    assert current_interpreter({}).project is not None
