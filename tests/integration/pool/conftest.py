"""Two models that weigh something, and a machine on which only one of them fits."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.daemon import DaemonProcess, link_models
from tests.support.machine import Machine
from tests.support.tiny_models import tiny_model

CONTEXT = 4096
WEIGHTY = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 2,
    "max_position_embeddings": CONTEXT,
}
"""Some 110 MB of weights, and 512 bytes of cache for each token: what counts is the weights."""


@pytest.fixture(scope="session")
def weighty(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two models of one size, named a and b."""
    root = tmp_path_factory.mktemp("weighty")
    a, b = (
        tiny_model(root, "llama", seed=seed, **WEIGHTY).rename(root / name)
        for seed, name in enumerate("ab")
    )
    return a, b


MakeMachine = Callable[..., Machine]


@pytest.fixture
def machine(tmp_path: Path, weighty: tuple[Path, Path]) -> Iterator[MakeMachine]:
    """Starts machines that end with the test."""
    yield from _starting(tmp_path, weighty)


@pytest.fixture(scope="module")
def module_machine(
    tmp_path_factory: pytest.TempPathFactory, weighty: tuple[Path, Path]
) -> Iterator[MakeMachine]:
    """Starts machines that last as long as the module."""
    yield from _starting(tmp_path_factory.mktemp("pool"), weighty)


def _starting(folder: Path, models: tuple[Path, ...]) -> Iterator[MakeMachine]:
    with ExitStack() as stack:

        def start(config: str = "") -> Machine:
            home = folder / "home"
            link_models(home, *models)
            daemon = DaemonProcess(home, config=f"models.scan_every = 600\n{config}")
            return Machine(stack.enter_context(daemon))

        yield start
