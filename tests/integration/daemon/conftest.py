"""Daemon processes for the integration tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import DaemonProcess, link_models
from tests.support.tiny_models import tiny_model, write_tokenizer

LONG = 65536


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama with a long context, so that a stream can be as long as a test needs."""
    return tiny_model(tmp_path_factory.mktemp("tiny"), "llama", max_position_embeddings=LONG)


@pytest.fixture(scope="session")
def second_tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("second")
    return tiny_model(folder, "llama", seed=1, max_position_embeddings=LONG)


@pytest.fixture(scope="session")
def templateless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tiny_model(tmp_path_factory.mktemp("plain"), "qwen3")
    write_tokenizer(model, chat_template=None)
    return model


@pytest.fixture(scope="session")
def daemon(
    tmp_path_factory: pytest.TempPathFactory, smollm2: Path, tiny: Path, templateless: Path
) -> Iterator[DaemonProcess]:
    """One daemon for all tests that leave it as they found it; the real model and tiny ones."""
    home = tmp_path_factory.mktemp("daemon")
    link_models(home, smollm2, tiny, templateless)
    with DaemonProcess(home) as running:
        yield running
        assert running.stop() == 0
