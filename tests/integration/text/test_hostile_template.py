"""A template that never ends, in a process of its own: the server stays free and can exit."""

import json
import subprocess
import sys
from pathlib import Path

from tests.support import tokenizer_folders as folders

HOSTILE = "{{ range(99999)|select('in', range(100000, 199999)|list)|list }}"
"""Ten billion comparisons without a loop, which would be asked at each turn."""

PROGRAM = """
import asyncio, json, sys, threading, time
import mlx.core as mx
import mlx_lm.utils
from omlxd.backend.mlx.tokenizer import load_tokenizer
from omlxd.errors import TemplateFailed, TemplatesBusy
from omlxd.text.options import TextOptions
from omlxd.text.template import PromptMaker

MESSAGES = [{"role": "user", "content": "hello"}]

async def beat(gaps):
    while True:
        before = time.monotonic()
        await asyncio.sleep(0.01)
        gaps.append(time.monotonic() - before)

async def outcome(maker, tokenizer):
    try:
        return len(await maker.chat_prompt(tokenizer, MESSAGES, model="m")) > 0
    except (TemplateFailed, TemplatesBusy) as error:
        return error.code

async def main():
    imported = mx.get_peak_memory()
    hostile, good = map(load_tokenizer, sys.argv[1:])
    maker = PromptMaker(TextOptions(render_deadline=0.5, max_renders=2))
    gaps = []
    beats = asyncio.create_task(beat(gaps))
    first = await outcome(maker, hostile)
    between = await outcome(maker, good)
    second = await outcome(maker, hostile)
    beats.cancel()
    print(json.dumps({
        "outcomes": [first, between, second, await outcome(maker, good)],
        "left_behind": maker.left_behind,
        "running": sum(thread.name == "render" for thread in threading.enumerate()),
        "longest_gap": max(gaps),
        "beats": len(gaps),
        "mlx_bytes": mx.get_peak_memory() - imported,
    }))

asyncio.run(main())
"""


def test_a_template_that_never_ends_holds_neither_the_loop_nor_the_exit(tmp_path: Path) -> None:
    """The render is left behind; beyond the limit requests get 503; the process still ends."""
    paths = [
        folders.write(
            tmp_path / name, folders.byte_level(), tokenizer_config={"chat_template": template}
        )
        for name, template in (("hostile", HOSTILE), ("good", folders.CHATML))
    ]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *paths],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["outcomes"] == [
        "chat_template_failed",
        True,
        "chat_template_failed",
        "templates_busy",
    ]
    assert seen["left_behind"] == seen["running"] == 2
    assert seen["beats"] > 10
    assert seen["longest_gap"] < 1.0
    assert seen["mlx_bytes"] == 0, "loading a tokenizer evaluated an array"
