"""The result of a check of the doctor: a verdict, a text, and a remedy if there is one."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    OK = "ok"
    WARN = "warn"
    """It works, but not as well or as safely as it could."""
    FAIL = "fail"
    """Something does not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """``name``: of the check, such as ``port``; ``remedy``: a command if possible."""

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
