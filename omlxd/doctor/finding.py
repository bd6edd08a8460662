"""What a check of the doctor found: one line with a verdict and, where there is one, a remedy."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    OK = "ok"
    WARN = "warn"
    """Works, though not as well or as safely as it could."""
    FAIL = "fail"
    """Something does not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """``name``: of the check, such as ``port``; ``remedy``: what to do, a command if possible."""

    verdict: Verdict
    name: str
    text: str
    remedy: str | None = None


def ok(name: str, text: str) -> Finding:
    return Finding(Verdict.OK, name, text)


def warn(name: str, text: str, remedy: str | None = None) -> Finding:
    return Finding(Verdict.WARN, name, text, remedy)


def fail(name: str, text: str, remedy: str | None = None) -> Finding:
    return Finding(Verdict.FAIL, name, text, remedy)


def failed(findings: Iterable[Finding]) -> bool:
    return any(finding.verdict is Verdict.FAIL for finding in findings)
