"""Entry point: ``omlxd`` and ``python -m omlxd``."""

import os
import sys


def main() -> int:
    _fill_streams()
    if sys.argv[1:2] == ["serve"]:
        # Before the imports, which take time.
        from omlxd.daemon.signals import exit_on_stop_signals

        exit_on_stop_signals()
    from omlxd.cli.main import run

    return run(sys.argv[1:])


def _fill_streams() -> None:
    """Open missing standard streams on the null device; else the next file would become one."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # open takes the lowest free number, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 — for good


if __name__ == "__main__":
    sys.exit(main())
