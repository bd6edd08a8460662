"""What the doctor says of Python, MLX and the GPU."""

import json
import subprocess
from dataclasses import replace

from omlxd.doctor.finding import Verdict
from omlxd.doctor.runtime import (
    RuntimeBroken,
    RuntimeFacts,
    check_gpu,
    check_mlx,
    check_python,
    probe,
)
from omlxd.service.interpreter import Interpreter
from omlxd.units import GiB

FACTS = RuntimeFacts("0.32.4", "0.32.2", 1, "Apple M4 Pro", 17 * GiB)
PYTHON = Interpreter(
    executable="/opt/tools/omlxd/bin/python",
    exists=True,
    prefix="/opt/tools/omlxd",
    base="/opt/python",
    system="Darwin",
    machine="arm64",
    user_home="/Users/me",
    project=False,
    throwaway=(),
)


def answered(code: int, stdout: str = "", stderr: str = "") -> RuntimeFacts | RuntimeBroken:
    return probe(lambda command, _: subprocess.CompletedProcess(command, code, stdout, stderr))


def test_the_probe_reads_what_the_runtime_says() -> None:
    said = {"mlx": "0.32.4", "mlx_lm": "0.32.2", "gpus": 1, "device": "Apple M4 Pro"}
    text = "noise\n" + json.dumps({**said, "working_set": 17 * GiB, "more": 1}) + "\n"
    assert answered(0, text) == FACTS


def test_a_runtime_that_cannot_be_imported_says_why() -> None:
    found = answered(1, "", "Traceback\n  line\nImportError: no libmlx\n\n")
    assert found == RuntimeBroken("ImportError: no libmlx")
    finding = check_mlx(found)
    assert finding.verdict is Verdict.FAIL
    assert "no libmlx" in finding.text
    assert finding.remedy is not None
    assert check_gpu(found, "darwin") is None


def test_a_runtime_that_crashes_hangs_or_says_nothing_is_told_apart() -> None:
    assert answered(-6) == RuntimeBroken("importing it ends the process with signal 6")
    assert answered(3) == RuntimeBroken("importing it fails (code 3)")
    assert answered(0, "{}") == RuntimeBroken("importing it fails (code 0)")

    def hangs(command: object, limit: float) -> subprocess.CompletedProcess[str]:
        raise subprocess.TimeoutExpired("python", limit)

    def absent(command: object, limit: float) -> subprocess.CompletedProcess[str]:
        raise OSError(2, "No such file")

    assert probe(hangs) == RuntimeBroken("importing it takes longer than 60 s")
    broken = probe(absent, "/gone/python")
    assert broken == RuntimeBroken("/gone/python cannot be started: No such file")


def test_no_gpu_is_a_failure_on_a_mac_and_a_warning_elsewhere() -> None:
    bare = replace(FACTS, gpus=0, device=None, working_set=None)
    for platform, verdict in (("darwin", Verdict.FAIL), ("linux", Verdict.WARN)):
        finding = check_gpu(bare, platform)
        assert finding is not None
        assert finding.verdict is verdict
    present = check_gpu(FACTS, "darwin")
    assert present is not None
    assert (present.verdict, present.text) == (Verdict.OK, "Apple M4 Pro, 17.0GB usable")


def test_python_under_rosetta_fails_and_a_newer_one_is_a_warning() -> None:
    assert check_python(PYTHON, (3, 12), "Python 3.12.1").verdict is Verdict.OK
    rosetta = check_python(replace(PYTHON, machine="x86_64"), (3, 12), "Python 3.12.1")
    assert rosetta.verdict is Verdict.FAIL
    assert "Rosetta" in rosetta.text
    assert check_python(PYTHON, (3, 99), "Python 3.99.0").verdict is Verdict.WARN
