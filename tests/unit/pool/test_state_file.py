"""The state files of the pool."""

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest

from omlxd.errors import StateUnwritable
from omlxd.pool.state_file import BackgroundStateFile


async def test_what_cannot_be_remembered_is_told_once_and_is_no_lost_exception(
    tmp_path: Path,
) -> None:
    lost: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context))
    (tmp_path / "full").write_text("")
    file = BackgroundStateFile(tmp_path / "full", "sizes.json")
    file.write({})
    await file.flush()
    with pytest.raises(StateUnwritable):
        await file.save({})
    gc.collect()
    assert file.trouble is not None
    assert lost == []
