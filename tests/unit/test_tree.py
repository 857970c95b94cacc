"""What the environment of `runlist run` asks for, under our names and HAMi's."""

from __future__ import annotations

import pytest

from runlist.cli.tree import defaults


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
        ({"RUNLIST_MEMORY": "8G", "RUNLIST_CAP": "12.5%"}, {"memory": "8G", "cap": "12.5%"}),
        ({"RUNLIST_MEMORY": "8G", "CUDA_DEVICE_MEMORY_LIMIT": "4g"}, {"memory": "8G"}),
        ({"RUNLIST_MEMORY": "8G", "RUNLIST_CAP": "30", "RUNLIST_REGION": "/r"}, {"cap": "30"}),
        ({"RUNLIST_CAP": "max", "CUDA_DEVICE_SM_LIMIT": "30"}, {}),
    ],
)
def test_defaults(environment: dict[str, str], settings: dict[str, str]) -> None:
    assert defaults(environment) == settings
