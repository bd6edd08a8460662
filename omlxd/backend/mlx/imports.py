"""Importing the runtime without what its import does to the process."""

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_lock = threading.Lock()


def import_mlx_lm() -> None:
    """Import mlx_lm; every first import of it goes through here, from whatever thread.

    Its ``utils`` lowers RLIMIT_NOFILE to (2048, 4096); a lowered hard limit cannot be raised
    again without privileges, so it must not happen in the first place.
    """
    # One prompt at a time has nothing to share out, and a pool of threads warns at each fork.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with _lock, _file_limit_kept():
        import mlx_lm  # noqa: F401


@contextmanager
def _file_limit_kept() -> Iterator[None]:
    setrlimit = resource.setrlimit

    def refuse_file_limit(which: int, limits: Any) -> None:
        if which != resource.RLIMIT_NOFILE:
            setrlimit(which, limits)

    resource.setrlimit = refuse_file_limit
    try:
        yield
    finally:
        resource.setrlimit = setrlimit
