"""The small real model for tests that need real text. It is made once and kept in .cache."""

import functools
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct"


@functools.cache
def real_model() -> Path:
    """SmolLM2-135M-Instruct in float32: its greedy output does not depend on the batch.

    The first use makes it, under a lock for parallel runs, and needs the network.
    """
    maker = [sys.executable, str(ROOT / "scripts" / "smollm2.py"), str(FOLDER)]
    made = subprocess.run(
        [*maker, "--dtype", "float32"], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, f"the model could not be made\n{made.stdout}{made.stderr}"
    return FOLDER


if __name__ == "__main__":
    print(real_model())  # noqa: T201 - a command when run as one
