"""A Darwin kernel to read from, on any machine with a C compiler."""

from pathlib import Path

import pytest

from tests.support.darwin_kernel import StandInKernel, compile_kernel, has_compiler


@pytest.fixture(scope="session")
def kernel_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not has_compiler():
        pytest.skip("no C compiler (cc) to build the stand-in for Darwin's kernel calls")
    return compile_kernel(tmp_path_factory.mktemp("kernel"))


@pytest.fixture
def kernel(kernel_library: Path) -> StandInKernel:
    return StandInKernel(kernel_library)
