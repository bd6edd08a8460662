"""Entry point: ``omlxd`` and ``python -m omlxd``."""

import sys


def main() -> int:
    from omlxd.cli.main import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
