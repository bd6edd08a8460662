"""A daemon with tiny models, and the commands that talk to it."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.daemon import DaemonProcess, link_models
from tests.support.tiny_models import tiny_model

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    root = tmp_path_factory.mktemp("models")
    return tiny_model(root, "llama"), tiny_model(root, "qwen3_next")


@pytest.fixture
def daemon(tmp_path: Path, tiny_models: tuple[Path, ...]) -> Iterator[DaemonProcess]:
    home = tmp_path / "home"
    link_models(home, *tiny_models)
    broken = home / "models" / "org" / "broken"
    broken.mkdir(parents=True)
    (broken / "config.json").write_text('{"model_type": "llama"}')
    (broken / "model.safetensors").write_bytes(b"12")
    with DaemonProcess(home, environ={"HF_HOME": str(home / "hf")}) as running:
        yield running


@pytest.fixture
def omlxd(tmp_path: Path) -> Command:
    """Run ``omlxd models ...`` against the home of ``daemon``."""

    def run(*arguments: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        home = tmp_path / "home"
        plain = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "OMLXD_"))}
        return subprocess.run(
            [sys.executable, "-m", "omlxd", "models", "--home", str(home), *arguments],
            env={**plain, "HF_HOME": str(home / "hf"), **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    return run
