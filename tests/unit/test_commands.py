"""The protocol's table against bytes: numbers, sizes and offsets as the driver's headers have them.

The fixtures are written out as the known-good probes sent them to a stock driver 580.159.04 on an H200.
"""

from __future__ import annotations

import struct

import pytest

from runlist.planes.nvidia.rm.client import raw
from runlist.planes.nvidia.rm.commands import (
    ALLOCATIONS,
    COMMAND_NAMES,
    COMMANDS,
    NVOS00_FREE,
    NVOS21_ALLOC,
    NVOS33_MAP_MEMORY,
    NVOS54_CONTROL,
    REGISTER_FD,
    is_channel,
    is_compute,
    is_copy,
)
from runlist.protocol.rm_autogen import Class, Ioctl, Privilege, Target

_NONE, _NICE = Privilege.NONE, Privilege.NICE
_CLIENT, _SUBDEVICE, _GROUP, _CHANNEL = Target.CLIENT, Target.SUBDEVICE, Target.GROUP, Target.CHANNEL
_BUFFER = Target.EVENT_BUFFER

TABLE = [
    ("GET_ATTACHED_IDS", 0x00000201, _CLIENT, _NONE, 128),
    ("GET_HANDLE_INFO", 0x00000D02, _CLIENT, _NONE, 16),
    ("GET_CHILD_HANDLE", 0x00000D05, _CLIENT, _NONE, 12),
    ("GET_GID_INFO", 0x2080014A, _SUBDEVICE, _NONE, 268),
    ("GET_TIMESLICE", 0xA06C0104, _GROUP, _NONE, 8),
    ("SET_TIMESLICE", 0xA06C0103, _GROUP, _NONE, 8),
    ("PREEMPT", 0xA06C0105, _GROUP, _NONE, 8),
    ("GET_INFO", 0xA06C0106, _GROUP, _NONE, 4),
    ("SET_INTERLEAVE_LEVEL", 0xA06C0107, _GROUP, _NICE, 4),
    ("MAKE_REALTIME", 0xA06C0110, _GROUP, _NICE, 1),
    ("GPFIFO_SCHEDULE", 0xA06C0101, _GROUP, _NONE, 3),
    ("RESTART_RUNLIST", 0xA06F0111, _CHANNEL, _NICE, 2),
    ("FIFO_DISABLE_CHANNELS", 0x2080110B, _SUBDEVICE, _NONE, 536),
    ("SET_CTXSW_PREEMPTION_MODE", 0x20801210, _SUBDEVICE, _NONE, 32),
    ("FIFO_RUNLIST_SET_SCHED_POLICY", 0x20801115, _SUBDEVICE, _NICE, 8),
    ("TIMER_GET_TIME", 0x20800403, _SUBDEVICE, _NONE, 8),
    ("BIND_SWITCH_LOG", 0x20801238, _SUBDEVICE, _NONE, 24),
    ("EVENT_BUFFER_ENABLE", 0x90CD0101, _BUFFER, _NONE, 8),
    ("EVENT_BUFFER_FLUSH", 0x90CD0104, _BUFFER, _NONE, 0),
]


@pytest.mark.parametrize(("name", "number", "target", "privilege", "size"), TABLE, ids=[row[0] for row in TABLE])
def test_the_table(name: str, number: int, target: Target, privilege: Privilege, size: int) -> None:
    command = COMMANDS[name]
    assert (command.name, command.number, command.target, command.privilege) == (name, number, target, privilege)
    assert command.parameters.size == size
    assert COMMAND_NAMES[number] == name
    assert command.effect


def test_every_control_is_in_this_table() -> None:
    assert set(COMMANDS) == {row[0] for row in TABLE}
    assert len(COMMAND_NAMES) == len(COMMANDS)  # no number twice


def test_a_control_is_addressed_to_the_class_in_its_number() -> None:
    classes = {_CLIENT: {0}, _SUBDEVICE: {0x2080}, _GROUP: {0xA06C}, _CHANNEL: {0xA06F}, _BUFFER: {0x90CD}}
    for command in COMMANDS.values():
        assert command.number >> 16 in classes[command.target], command.name


FIXTURES = [
    ("SET_TIMESLICE", {"timeslice_us": 1}, "0100000000000000"),
    ("SET_TIMESLICE", {"timeslice_us": 1_000_000}, "40420f0000000000"),
    ("SET_TIMESLICE", {"timeslice_us": 1 << 40}, "0000000000010000"),
    ("GET_TIMESLICE", {}, "0000000000000000"),
    ("PREEMPT", {"wait": 1}, "0100000000000000"),
    ("PREEMPT", {"wait": 1, "manual_timeout": 1, "timeout_us": 0x01020304}, "0101000004030201"),
    ("SET_INTERLEAVE_LEVEL", {"level": 2}, "02000000"),
    ("MAKE_REALTIME", {"realtime": 1}, "01"),
    ("GPFIFO_SCHEDULE", {"enable": 1}, "010000"),
    ("GPFIFO_SCHEDULE", {"enable": 1, "skip_enable": 1}, "010001"),
    ("RESTART_RUNLIST", {"force": 1}, "0100"),
    ("GET_HANDLE_INFO", {"object": 0x5C000015, "index": 2}, "1500005c" + "02000000" + "00" * 8),
    ("GET_CHILD_HANDLE", {"parent": 0x5C000002, "class_": 0xA06C}, "0200005c" + "6ca00000" + "00" * 4),
    (
        "SET_CTXSW_PREEMPTION_MODE",
        {"flags": 1, "channel": 0x5C00001C, "compute": 1},
        "01000000" + "1c00005c" + "00000000" + "01000000" + "00" * 16,
    ),
    ("FIFO_RUNLIST_SET_SCHED_POLICY", {"flags": 1}, "01000000" + "00000000"),
    (
        "BIND_SWITCH_LOG",
        {"event_buffer": 0xA0000005, "record_size": 32, "level_of_detail": 1, "all_users": 1},
        "050000a0" + "20000000" + "01000000" + "00000000" + "01000000" + "00000000",
    ),
    ("EVENT_BUFFER_ENABLE", {"enable": 1, "flags": 2}, "01000000" + "02000000"),
    ("EVENT_BUFFER_FLUSH", {}, ""),
]


@pytest.mark.parametrize(("name", "values", "expected"), FIXTURES)
def test_parameters_byte_for_byte(name: str, values: dict[str, int], expected: str) -> None:
    control = raw(COMMANDS[name], 0x5C000015, **values)
    assert (control.object, control.command, control.params.hex()) == (0x5C000015, COMMANDS[name].number, expected)


def test_disable_channels_byte_for_byte() -> None:
    """u8 bDisable, u32 count @4, u8 bOnlyDisableScheduling @8, u8 bRewindGpPut @9, u64 event @16, clients @24, channels
    @280.
    """
    params = raw(
        COMMANDS["FIFO_DISABLE_CHANNELS"], 0x5C000003,
        disable=1, count=2, clients=[0xC1D0009B] * 2, channels=[0x5C00001C, 0x5C000022],
    ).params  # fmt: skip
    assert len(params) == 536
    assert params[:24].hex() == "01000000" + "02000000" + "00" * 16
    assert params[24:32].hex() == "9b00d0c1" * 2
    assert params[280:288].hex() == "1c00005c" + "2200005c"
    assert not any(params[32:280])
    assert not any(params[288:])


@pytest.mark.parametrize(
    ("field", "offset", "form"),
    [("only_scheduling", 8, "B"), ("rewind", 9, "B"), ("event", 16, "Q"), ("count", 4, "I"), ("disable", 0, "B")],
)
def test_disable_channels_offsets(field: str, offset: int, form: str) -> None:
    params = raw(COMMANDS["FIFO_DISABLE_CHANNELS"], 0, **{field: 1}).params
    expected = bytearray(536)
    struct.pack_into(f"<{form}", expected, offset, 1)
    assert params == bytes(expected)


def test_ioctl_structures_byte_for_byte() -> None:
    argument = NVOS54_CONTROL.pack(
        client=0xC1D0009B, object=0x5C000015, command=0xA06C0104, params=0x7FFF12345678, params_size=8, status=0xFFFF
    )
    assert argument.hex() == "9b00d0c11500005c04016ca00000000078563412ff7f000008000000ffff0000"
    assert len(NVOS54_CONTROL.pack()) == 32
    alloc = NVOS21_ALLOC.pack(root=1, parent=2, new=3, class_=0x41, params=4, params_size=5, status=6)
    assert alloc.hex() == "0100000002000000030000004100000004000000000000000500000006000000"
    free = NVOS00_FREE.pack(root=1, parent=2, old=3, status=4)
    assert free.hex() == "01000000020000000300000004000000"
    assert (Ioctl.RM_FREE, Ioctl.RM_CONTROL, Ioctl.RM_ALLOC) == (0x29, 0x2A, 0x2B)
    map_memory = NVOS33_MAP_MEMORY.pack(
        client=1, device=2, memory=3, offset=4, length=5, linear=6, status=7, flags=8, fd=-1
    )
    assert map_memory == struct.pack("<IIIxxxxQQQIIixxxx", 1, 2, 3, 4, 5, 6, 7, 8, -1)
    assert len(map_memory) == 56
    assert REGISTER_FD.pack(control_fd=9) == struct.pack("<i", 9)
    assert (Ioctl.RM_MAP_MEMORY, Ioctl.REGISTER_FD) == (0x4E, 201)


@pytest.mark.parametrize(
    ("class_", "values", "expected"),
    [
        (Class.DEVICE, {"device_id": 2, "client_share": 3}, struct.pack("<II48x", 2, 3)),
        (Class.SUBDEVICE, {}, bytes(4)),
        (Class.MEMORY_DEVICELESS, {"attr": 1 << 29, "attr2": 1 << 22, "size": 4096},
         struct.pack("<24xII32xQ56x", 1 << 29, 1 << 22, 4096)),
        (Class.EVENT_BUFFER, {"record_size": 32, "record_count": 9, "subdevice": 5, "header": 6, "records": 7},
         struct.pack("<16xII28xI4xII4x", 32, 9, 5, 6, 7)),
    ],
)  # fmt: skip
def test_parameters_of_allocations(class_: Class, values: dict[str, int], expected: bytes) -> None:
    assert ALLOCATIONS[class_].pack(**values) == expected
    assert len(expected) == {0x80: 56, 0x2080: 4, 0x90CE: 128, 0x90CD: 72}[class_]


@pytest.mark.parametrize("number", [0xC36F, 0xC46F, 0xC56F, 0xC86F, 0xC96F, 0xCA6F])
def test_channels_of_every_generation(number: int) -> None:
    assert is_channel(number)
    assert not is_compute(number)
    assert not is_copy(number)


@pytest.mark.parametrize(("compute", "copy"), [(0xC3C0, 0xC3B5), (0xC5C0, 0xC5B5), (0xC7C0, 0xC7B5), (0xCBC0, 0xC8B5)])
def test_engines_of_every_generation(compute: int, copy: int) -> None:
    assert is_compute(compute)
    assert not is_compute(copy)
    assert is_copy(copy)
    assert not is_copy(compute)


@pytest.mark.parametrize("number", [0x00, 0x41, 0x80, 0x2080, 0x2081, 0xA06C, 0x9067, 0x40, 0x3E, 0x90F1, 0xCB33, 0x79])
def test_other_classes_are_no_engines(number: int) -> None:
    assert not any(kind(number) for kind in (is_compute, is_copy, is_channel))
