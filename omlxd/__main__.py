"""Entry point: ``omlxd`` and ``python -m omlxd``."""

import sys


def main() -> int:
    if sys.argv[1:2] == ["serve"]:
        # Before what takes time to import.
        from omlxd.cli import early_stop

        early_stop.listen()
    from omlxd.cli.main import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
