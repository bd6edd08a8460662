"""Warns of long source files of the package, and fails for those that are too long (rule 7)."""

import sys
from pathlib import Path

WARN = 350
"""Lines; a longer file may have more than one responsibility."""
BUDGET = 500


def main() -> int:
    lengths = {p: len(p.read_text().splitlines()) for p in sorted(Path("omlxd").rglob("*.py"))}
    for path, lines in lengths.items():
        if lines > BUDGET:
            print(f"{path}: {lines} lines, the budget is {BUDGET}; split it by responsibility")
        elif lines > WARN:
            print(f"warning: {path}: {lines} lines are more than {WARN}")
    print(f"{len(lengths)} files, {sum(lengths.values())} lines, largest {max(lengths.values())}")
    return 1 if max(lengths.values()) > BUDGET else 0


if __name__ == "__main__":
    sys.exit(main())
