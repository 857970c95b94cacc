"""RM calls on one open file."""

from __future__ import annotations

import pytest

from runlist.planes.nvidia.rm.client import RawControl, RmClient, free_client, open_client
from runlist.planes.nvidia.rm.status import InvalidArgument, InvalidClient, NotSupported, ObjectNotFound
from runlist.protocol.rm_autogen import Class
from tests.fixtures.fake_rm import UUIDS, FakeRm
from tests.fixtures.switch_log import FakeLogDriver


def _group(rm: FakeRm) -> tuple[RmClient, int]:
    file = rm.tenant(1)
    client = file.client()
    device = client.device()
    return RmClient(file, client.handle), client.context(device)[0]


def test_a_control_returns_its_parameters() -> None:
    client, group = _group(FakeRm())
    assert client.control(group, "GET_TIMESLICE") == {"timeslice_us": 2048}
    client.control(group, "SET_TIMESLICE", timeslice_us=1)
    assert client.control(group, "GET_TIMESLICE") == {"timeslice_us": 1}


def test_send_leaves_its_input_alone_and_returns_the_status() -> None:
    client, group = _group(FakeRm())
    control = RawControl(group, 0xA06C0104, bytes(8))
    assert client.send(control) == (0, bytearray((2048).to_bytes(8, "little")))
    assert control.params == bytes(8)
    assert client.send(RawControl(group, 0xA06C0104, bytes(7)))[0] == 0x1F
    assert client.send(RawControl(group, 0xDEADBEEF, bytes(8)))[0] == 0x56


def test_refusals_are_named() -> None:
    client, group = _group(FakeRm())
    with pytest.raises(ObjectNotFound, match="GET_TIMESLICE on 0x00000007 of client 0x"):
        client.control(7, "GET_TIMESLICE")
    with pytest.raises(InvalidClient):
        RmClient(client.file, 0xC1D0FFFF).control(group, "GET_TIMESLICE")
    with pytest.raises(NotSupported):
        client.control(group, "RESTART_RUNLIST")


@pytest.mark.parametrize("size", [2, 3])
def test_gpfifo_schedule_falls_back_on_the_older_size(size: int) -> None:
    """Before 575 the structure had no bSkipEnable: the driver answers 0x1F to three bytes."""
    rm = FakeRm()
    rm.sizes[0xA06C0101] = size
    client, group = _group(rm)
    answer = client.control(group, "GPFIFO_SCHEDULE", enable=1, skip_enable=0)
    assert answer["enable"] == 1
    calls = rm.tenant(1).sent(0xA06C0101)
    assert [len(call.params) for call in calls] == [3, 2][: 2 if size == 2 else 1]
    assert calls[-1].status == 0


def test_a_driver_that_takes_no_known_size_is_an_error() -> None:
    rm = FakeRm()
    rm.sizes[0xA06C0101] = 1
    client, group = _group(rm)
    with pytest.raises(InvalidArgument, match="runlist doctor"):
        client.control(group, "GPFIFO_SCHEDULE", enable=1)


def test_only_a_refused_size_is_tried_again() -> None:
    rm = FakeRm()
    client, _ = _group(rm)
    with pytest.raises(ObjectNotFound):
        client.control(7, "GPFIFO_SCHEDULE", enable=1)
    assert len(rm.tenant(1).sent(0xA06C0101)) == 1


def test_clients_of_our_own_come_and_go() -> None:
    rm = FakeRm(newest=0x41)
    file = rm.file()
    client = open_client(file)
    assert client.handle == 0xC1D00042
    assert list(file.clients) == [client.handle]
    free_client(client)
    assert not file.clients


def test_objects_of_our_own_come_and_go() -> None:
    file = FakeLogDriver({0: UUIDS[0]}).open()
    client = open_client(file)
    client.allocate(Class.DEVICE, client.handle, 0xA1, client_share=client.handle)
    client.allocate(Class.SUBDEVICE, 0xA1, 0xA2)
    assert client.gpu_uuid(0xA2) == UUIDS[0]
    client.free(0xA1)
    assert not file.objects
    file.refuse[0x80] = 0x56
    with pytest.raises(NotSupported, match="RM_ALLOC of class 0x80"):
        client.allocate(Class.DEVICE, client.handle, 0xA1, client_share=client.handle)


def test_a_bad_field_is_a_bug_told_at_once() -> None:
    client, group = _group(FakeRm())
    with pytest.raises(ValueError, match="does not fit"):
        client.control(group, "SET_TIMESLICE", timeslice_us=-1)
