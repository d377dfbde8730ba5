"""Fixtures of the tests with pretended GPUs."""

import pytest
from machines import Gpu, Machine, built


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory):
    return built(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def machine(nvml_library, tmp_path):
    """`machine(4)` has four GPUs; `machine([Gpu(result=LOST)])` a lost one."""

    def make(gpus, **more):
        gpus = [Gpu() for _ in range(gpus)] if isinstance(gpus, int) else gpus
        return Machine(tmp_path / "machine", nvml_library, gpus, **more)

    return make
