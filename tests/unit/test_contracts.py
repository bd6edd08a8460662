"""The import contracts hold for every package that exists, not for an outdated list."""

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def contract(name: str) -> dict[str, Any]:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts: list[dict[str, Any]] = table["tool"]["importlinter"]["contracts"]
    return next(c for c in contracts if c["name"] == name)


def modules_in(package: str) -> set[str]:
    """The packages and modules directly in ``package``."""
    folder = ROOT / package.replace(".", "/")
    names = {path.stem for path in folder.iterdir() if path.suffix == ".py"}
    names |= {path.parent.name for path in folder.glob("*/__init__.py")}
    return {f"{package}.{name}" for name in names - {"__init__"}}


def test_all_but_the_one_backend_are_kept_from_the_runtime() -> None:
    listed = contract("only backend/mlx knows the runtime")["source_modules"]
    expected = modules_in("omlxd") - {"omlxd.backend"} | modules_in("omlxd.backend")
    assert set(listed) == expected - {"omlxd.backend.mlx"}


def test_all_but_the_outer_layers_are_kept_from_http() -> None:
    listed = contract("only the API and the commands speak HTTP")["source_modules"]
    speak = {"__main__", "api", "cli", "daemon"}
    assert set(listed) == modules_in("omlxd") - {f"omlxd.{name}" for name in speak}
