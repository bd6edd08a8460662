"""Models large enough to be weighed, and a daemon whose memory the tests squeeze."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from omlxd.units import MiB
from tests.support.daemon import DaemonProcess, link_models
from tests.support.squeeze import Squeezed
from tests.support.tiny_models import tiny_model

SHAPE = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "max_position_embeddings": 65536,
}
"""Some 150 MB, and 256 KiB of cache for each token: heavy, and still quick on a CPU."""
FREED_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": str(MiB)}
"""glibc raises this bound by itself and then keeps what was freed; Metal's buffers go back."""


@pytest.fixture(scope="session")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """Three models named a, b and c."""
    root = tmp_path_factory.mktemp("heavy")
    return tuple(
        tiny_model(root, "llama", seed=seed, **SHAPE).rename(root / name)
        for seed, name in enumerate("abc")
    )


MakeSqueezed = Callable[..., Squeezed]


@pytest.fixture(scope="module")
def squeezed_module(
    tmp_path_factory: pytest.TempPathFactory, heavy: tuple[Path, ...]
) -> Iterator[MakeSqueezed]:
    """Starts daemons that last as long as the module."""
    yield from _starting(tmp_path_factory.mktemp("squeezed"), heavy)


@pytest.fixture
def squeezed(tmp_path: Path, heavy: tuple[Path, ...]) -> Iterator[MakeSqueezed]:
    """Starts daemons that end with the test."""
    yield from _starting(tmp_path, heavy)


def _starting(folder: Path, models: tuple[Path, ...]) -> Iterator[MakeSqueezed]:
    with ExitStack() as stack:

        def start(*, pinned: str | None = None) -> Squeezed:
            home = folder / (pinned or "home")
            link_models(home, *models)
            config = "[models]\nscan_every = 600\n"
            if pinned is not None:
                config += f"[models.settings.{pinned}]\npinned = true\n"
            daemon = DaemonProcess(home, config=config, environ=FREED_AT_ONCE)
            return Squeezed(stack.enter_context(daemon))

        yield start
