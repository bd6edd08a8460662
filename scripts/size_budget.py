"""Fails when a source file of the package is longer than its budget (house rule 7)."""

import sys
from pathlib import Path

BUDGET = 500


def main() -> int:
    lengths = {p: len(p.read_text().splitlines()) for p in sorted(Path("omlxd").rglob("*.py"))}
    over = {p: n for p, n in lengths.items() if n > BUDGET}
    for path, lines in over.items():
        print(f"{path}: {lines} lines, the budget is {BUDGET}; split it by responsibility")
    print(f"{len(lengths)} files, {sum(lengths.values())} lines, largest {max(lengths.values())}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
