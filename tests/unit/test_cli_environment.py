"""What the environment of `runlist run` asks for, under our names and HAMi's."""

from __future__ import annotations

import pytest

from runlist.cli.environment import defaults, made_one


@pytest.mark.parametrize(
    ("environment", "settings"),
    [
        ({}, {}),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "4g", "CUDA_DEVICE_SM_LIMIT": "30"}, {"memory": "4g", "cap": "30"}),
        ({"CUDA_DEVICE_MEMORY_LIMIT": ""}, {}),
        ({"CUDA_DEVICE_SM_LIMIT": "0"}, {}),
        ({"CUDA_DEVICE_SM_LIMIT": "100"}, {}),
        ({"CUDA_DEVICE_SM_LIMIT": "150"}, {}),
        ({"CUDA_DEVICE_SM_LIMIT": "half"}, {"cap": "half"}),  # the daemon says what is wrong with it
        ({"CUDA_DEVICE_SM_LIMIT": "30", "GPU_CORE_UTILIZATION_POLICY": "disable"}, {}),
        ({"CUDA_DEVICE_SM_LIMIT": "30", "GPU_CORE_UTILIZATION_POLICY": "force"}, {"cap": "30"}),
        ({"CUDA_TASK_PRIORITY": "1"}, {"class": "batch"}),
        ({"CUDA_TASK_PRIORITY": "0"}, {}),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "4g", "CUDA_TASK_PRIORITY": "1", "CUDA_DISABLE_CONTROL": "true"}, {}),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "4g", "CUDA_DISABLE_CONTROL": "1"}, {}),
        ({"RUNLIST_MEMORY": "8G", "RUNLIST_CAP": "12.5%"}, {"memory": "8G", "cap": "12.5%"}),
        ({"RUNLIST_CAP": "30ms/100ms", "CUDA_DEVICE_SM_LIMIT": "30"}, {"cap": "30ms/100ms"}),
        ({"RUNLIST_CAP": "30000 100000"}, {"cap": "30000 100000"}),
        ({"RUNLIST_MEMORY": "8G", "CUDA_DEVICE_MEMORY_LIMIT": "4g"}, {"memory": "8G"}),
        ({"RUNLIST_MEMORY": "8G", "RUNLIST_CAP": "30", "RUNLIST_REGION": "/r"}, {"cap": "30"}),
        ({"RUNLIST_CAP": "max", "CUDA_DEVICE_SM_LIMIT": "30"}, {}),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "3000m", "CUDA_DEVICE_SM_LIMIT_1": "30"}, {"memory": "3000m", "cap": "30"}),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "4g", "CUDA_DEVICE_MEMORY_LIMIT_1": "900m"}, {"memory": "900m"}),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "4g", "CUDA_DEVICE_MEMORY_LIMIT_1": "5g"}, {"memory": "4g"}),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "4g", "CUDA_DEVICE_MEMORY_LIMIT_1": "0"}, {"memory": "4g"}),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "0m"}, {"memory": "max"}),  # 0 is no limit there, and no value of `--memory`
        ({"RUNLIST_MEMORY": "0", "CUDA_DEVICE_MEMORY_LIMIT": "4g"}, {"memory": "max"}),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "4g", "CUDA_DEVICE_MEMORY_LIMIT_1": "lots"}, {"memory": "lots"}),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "4g", "CUDA_DEVICE_MEMORY_LIMIT_1": ""}, {"memory": "4g"}),
        (
            {"CUDA_DEVICE_SM_LIMIT": "100", "CUDA_DEVICE_SM_LIMIT_1": "20%", "CUDA_DEVICE_SM_LIMIT_2": "0"},
            {"cap": "20%"},
        ),
        ({"CUDA_DEVICE_MEMORY_LIMIT_X": "4g", "A_CUDA_DEVICE_MEMORY_LIMIT_0": "4g"}, {}),
        ({"RUNLIST_MEMORY": "8G", "CUDA_DEVICE_MEMORY_LIMIT_1": "2g"}, {"memory": "8G"}),
    ],
)
def test_defaults(environment: dict[str, str], settings: dict[str, str]) -> None:
    assert defaults(environment) == settings


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "2g"}, 0),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "2g", "CUDA_DEVICE_MEMORY_LIMIT_1": "2g"}, 0),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "2g", "CUDA_DEVICE_MEMORY_LIMIT_1": "4g"}, 1),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "2g", "CUDA_DEVICE_MEMORY_LIMIT_1": "4g", "RUNLIST_REGION": "/r"}, 0),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "2g", "CUDA_DEVICE_MEMORY_LIMIT_1": "4g", "RUNLIST_MEMORY": "8g"}, 0),
    ],
)
def test_where_single_gpus_have_different_limits_it_says_which_holds(environment: dict[str, str], said: int) -> None:
    lines = made_one(environment, defaults(environment))
    line = "CUDA_DEVICE_MEMORY_LIMIT_N: on every GPU the smallest counts under `runlist run`: memory=2g"
    assert lines == [line] * said
