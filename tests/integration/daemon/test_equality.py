"""What the daemon answers is what mlx-lm answers: greedy, alone and in a batch."""

import concurrent.futures
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from tests.integration.conftest import MakeDaemon
from tests.support.daemon import DaemonProcess
from tests.support.tiny_models import tiny_model

PROMPTS = (
    "The capital of France is",
    "Once upon a time",
    "def fibonacci(n):",
    "The three primary colours are",
    "Water boils at",
    "List the planets of the solar system in order from the sun outwards:",
    "A",
    "My favourite recipe starts with two onions, a clove of garlic and",
)

REFERENCE = """
import json, sys
from mlx_lm import load, stream_generate
model, tokenizer = load(sys.argv[1])
for prompt in json.loads(sys.argv[3]):
    ids = tokenizer.encode(prompt)
    tokens = []
    for response in stream_generate(model, tokenizer, ids, max_tokens=int(sys.argv[2])):
        tokens.append(response.token)
    tokens = [t for t in tokens if t not in tokenizer.eos_token_ids]
    print(json.dumps(tokenizer.decode(tokens, skip_special_tokens=True)))
"""
"""mlx-lm's own greedy answers, in a process of its own."""


def reference(model: Path, prompts: Sequence[str], max_tokens: int) -> list[str]:
    made = subprocess.run(
        [sys.executable, "-c", REFERENCE, str(model), str(max_tokens), json.dumps(prompts)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return [readable(json.loads(line)) for line in made.stdout.splitlines()]


def readable(text: str) -> str:
    """Without U+FFFD: how many of them stand for invalid bytes is a matter of the decoder."""
    return text.replace("\ufffd", "")


def ask(daemon: DaemonProcess, model: str, prompt: str, max_tokens: int) -> str:
    answer = httpx.post(
        f"{daemon.url}/v1/completions",
        json={"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0},
        timeout=300,
    )
    assert answer.status_code == 200, answer.text
    return readable(answer.json()["choices"][0]["text"])


def test_the_real_model_answers_as_mlx_lm_does_alone_and_in_a_batch_of_eight(
    daemon: DaemonProcess, smollm2: Path
) -> None:
    expected = reference(smollm2, PROMPTS, 12)
    assert ask(daemon, smollm2.name, PROMPTS[0], 12) == expected[0]
    with concurrent.futures.ThreadPoolExecutor(len(PROMPTS)) as pool:
        together = list(pool.map(lambda p: ask(daemon, smollm2.name, p, 12), PROMPTS))
    assert together == expected


@pytest.mark.parametrize("arch", ["gemma3_text", "qwen3_next", "falcon_h1", "qwen3_moe"])
def test_other_kinds_of_cache_answer_as_mlx_lm_does(
    make_daemon: MakeDaemon, tmp_path: Path, arch: str
) -> None:
    """A sliding window, linear attention, a state space beside attention, experts."""
    model = tiny_model(tmp_path / "made", arch)
    prompts = [f"{p} {'and so on ' * n}" for n, p in enumerate(PROMPTS)]
    expected = reference(model, prompts, 24)
    daemon = make_daemon(models=(model,))
    alone = [ask(daemon, model.name, prompt, 24) for prompt in prompts[:2]]
    assert alone == expected[:2]
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        together = list(pool.map(lambda p: ask(daemon, model.name, p, 24), prompts))
    assert together == expected
