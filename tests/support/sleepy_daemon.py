"""The daemon on a machine that sleeps as a file says: ``python -m tests.support.sleepy_daemon``.

The file named by OMLXD_TEST_SLEPT holds the seconds slept so far.
"""

import os
import sys
from functools import partial
from pathlib import Path

import omlxd.daemon.parts as parts
from omlxd.__main__ import main
from omlxd.host.clock import SleepWatch, awake_clock

SLEPT = Path(os.environ["OMLXD_TEST_SLEPT"])


def continuous_clock() -> float:
    return awake_clock() + float(SLEPT.read_text())


if __name__ == "__main__":
    vars(parts)["continuous_clock"] = continuous_clock
    vars(parts)["SleepWatch"] = partial(SleepWatch, continuous_clock)
    sys.exit(main())
