"""Putting back a process whose daemon and keeper were killed, and the driver's own numbers of GPUs."""

from __future__ import annotations

import os

import pytest

from runlist.errors import NoTargetError
from runlist.planes.nvidia import rescue
from runlist.planes.nvidia.gpu_numbers import gpu_numbers
from tests.fixtures.fake_rm import COMPUTE, COPY, UUIDS, FakeRm
from tests.fixtures.switch_log import FakeLogDriver

PID = os.getpid()


@pytest.fixture
def rm(monkeypatch: pytest.MonkeyPatch) -> FakeRm:
    one = FakeRm()
    monkeypatch.setattr(rescue.borrow, "OwnRight", lambda: one)
    return one


def test_slices_of_others_lengths_are_set_back_and_all_is_enabled(rm: FakeRm) -> None:
    client = rm.tenant(PID).client()
    compute, *copies = client.context(client.device())
    other = client.group(client.device(UUIDS[1]), 1, (COPY,), slice_us=1024)
    client.objects[compute].slice_us = 50
    client.objects[copies[1]].slice_us = 7
    channels = client.of_class(0xC86F)
    for channel in channels:
        client.objects[channel].enabled = False
    before = len(os.listdir("/proc/self/fd"))
    assert rescue.rescue(rm, PID) == [  # type: ignore[arg-type]
        f"process {PID}: a slice of 50 µs is set to 2048 µs",
        f"process {PID}: a slice of 7 µs is set to 1024 µs",
    ]
    assert [client.objects[group].slice_us for group in (compute, *copies, other)] == [2048, 1024, 1024, 1024, 1024]
    assert all(client.objects[channel].enabled for channel in channels)
    assert rm.tenant(PID).closed == 1
    assert len(os.listdir("/proc/self/fd")) == before
    rm.tenant(PID).closed = 0
    assert rescue.rescue(rm, PID) == []  # type: ignore[arg-type]


def test_each_file_is_let_go_of_once_whatever_clients_are_on_it(rm: FakeRm) -> None:
    for fd in (8, 9):
        for _ in range(2):
            client = rm.tenant(PID, fd).client()
            client.group(client.device(), 1, (COMPUTE,), slice_us=5)
    assert len(rescue.rescue(rm, PID)) == 4  # type: ignore[arg-type]
    assert [rm.tenant(PID, fd).closed for fd in (8, 9)] == [1, 1]


def test_a_process_without_gpu_work_is_said(rm: FakeRm) -> None:
    rm.processes[PID] = {}
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(NoTargetError, match=f"process {PID} has no GPU work: nothing was done"):
        rescue.rescue(rm, PID)  # type: ignore[arg-type]
    assert len(os.listdir("/proc/self/fd")) == before


def test_each_gpu_is_asked_for_its_uuid_by_the_number_that_programs_name() -> None:
    driver = FakeLogDriver({0: UUIDS[0], 3: UUIDS[1]})
    opened = [os.memfd_create("gpu") for _ in driver.gpus]
    driver.attach_gpus = lambda file: list(opened)  # type: ignore[method-assign,assignment]
    assert gpu_numbers(driver) == {0: UUIDS[0], 3: UUIDS[1]}  # type: ignore[arg-type]
    (file,) = driver.files
    assert (file.closed, file.client, file.objects) == (1, 0, {})
    for fd in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_a_machine_without_gpus_has_no_numbers() -> None:
    assert gpu_numbers(FakeLogDriver({})) == {}  # type: ignore[arg-type]
