"""That the generated protocols are what the package has by hand. To be deleted with what is written by hand."""

from __future__ import annotations

import inspect
import re
import struct
from pathlib import Path

import pytest

from bench.harness import library as bench_library
from runlist import emulated, environment, paths, tenant
from runlist.cli import environment as cli_environment
from runlist.daemon.requests import messages
from runlist.planes.nvidia import controls, discover, rescue, switch_log
from runlist.planes.nvidia.rm import client, commands, status, transport
from runlist.planes.process import library, preload
from runlist.planes.process.region import file as region_file
from runlist.planes.process.region import format as region_format
from runlist.protocol import (
    calibration_autogen,
    emulator_autogen,
    environment_autogen,
    region_autogen,
    rm_autogen,
    tenant_autogen,
)
from runlist.sim import timing
from runlist.structure import Structure

ROOT = Path(__file__).resolve().parents[2]


def same(ours: Structure, text: str) -> None:
    theirs = Structure(text)
    assert (theirs.struct.format, theirs.offsets, theirs.names) == (ours.struct.format, ours.offsets, ours.names)


# -- the driver ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["NVOS54_CONTROL", "NVOS21_ALLOC", "NVOS00_FREE", "NVOS33_MAP_MEMORY", "REGISTER_FD"])
def test_arguments_of_ioctls(name: str) -> None:
    same(getattr(commands, name), rm_autogen.STRUCTS[name])


def test_allocations() -> None:
    assert set(map(int, rm_autogen.ALLOCATIONS)) == set(map(int, commands.ALLOCATIONS))
    for class_, text in rm_autogen.ALLOCATIONS.items():
        same(commands.ALLOCATIONS[commands.Class(int(class_))], text)


def test_controls() -> None:
    assert [row[0] for row in rm_autogen.CONTROLS] == list(commands.COMMANDS)
    for name, number, target, privilege, layout, effect, older in rm_autogen.CONTROLS:
        ours = commands.COMMANDS[name]
        assert (number, target.name, privilege.name, effect) == (
            ours.number,
            ours.target.name,
            ours.privilege.name,
            ours.effect,
        )
        same(ours.layout, layout)
        assert len(older) == len(ours.older)
        for mine, theirs in zip(ours.older, older, strict=True):
            same(mine, theirs)


def test_what_the_rows_are_made_of_is_data_of_the_table() -> None:
    (gpfifo,) = [row for row in rm_autogen.CONTROLS if row[0] == "GPFIFO_SCHEDULE"]
    assert gpfifo[-1] == ("enable:B skip_submit:B",)


@pytest.mark.parametrize("name", ["Class", "Ioctl", "Target", "Privilege"])
def test_enums_of_the_driver(name: str) -> None:
    ours = {member.name: member.value for member in getattr(commands, name)}
    theirs = {member.name: member.value for member in getattr(rm_autogen, name)}
    assert ours.items() <= theirs.items()


@pytest.mark.parametrize(
    "name",
    [
        "MAP_READ_ONLY",
        "MEMORY_CACHED",
        "MEMORY_USER_READ_ONLY",
        "MAX_DISABLE_CHANNELS",
        "HANDLE_INFO_PARENT",
        "HANDLE_INFO_CLASS",
        "MAX_GPUS",
        "NO_GPU_ID",
        "EVENT_BUFFER_KEEP_NEWEST",
        "SWITCH_LOG_SIMPLE",
    ],
)
def test_numbers_of_the_driver(name: str) -> None:
    assert getattr(rm_autogen, name) == getattr(commands, name)


def test_values_of_controls() -> None:
    rows = {name: row.params for name, row in controls.ROWS.items()}
    assert rows["interleave"] == {level.name.lower(): {"level": level} for level in rm_autogen.Interleave}
    assert rows["preemption"] == {
        mode.name.lower(): {"flags": rm_autogen.PREEMPTION_SET_COMPUTE, "compute": mode}
        for mode in rm_autogen.PreemptionMode
    }
    words = zip(("default", "interleaved", "wddm"), rm_autogen.SchedulingPolicy, strict=True)
    given = {"driver": {"flags": rm_autogen.SCHED_POLICY_RESTORE}, **{word: {"policy": one} for word, one in words}}
    assert rows["scheduling-policy"] == given


def test_classes_of_engines() -> None:
    for number in range(1 << 16):
        byte, is_engine = number & 0xFF, number > rm_autogen.ENGINES_FROM
        assert commands.Class.is_channel(number) == (byte == rm_autogen.CHANNEL_BYTE)
        assert commands.Class.is_compute(number) == (is_engine and byte == rm_autogen.COMPUTE_BYTE)
        assert commands.Class.is_copy(number) == (is_engine and byte == rm_autogen.COPY_BYTE)


def test_statuses() -> None:
    ours = {"NV_OK": "OK", "NO_PERMISSION": "INSUFFICIENT_PERMISSIONS", "INVALID_ARGUMENT": "INVALID_ARGUMENT"}
    ours |= {"CLIENT_MISSING": "INVALID_CLIENT", "OBJECT_MISSING": "OBJECT_NOT_FOUND"}
    for mine, theirs in ours.items():
        assert getattr(status, mine) == rm_autogen.Status[theirs]
    assert rm_autogen.Status.UNSET == client._STATUS_UNSET


def test_where_parameters_are_pointed_to() -> None:
    for name in ("NVOS54_CONTROL", "NVOS21_ALLOC"):
        assert Structure(rm_autogen.STRUCTS[name]).offsets["params"] == client._CONTROL_PARAMS_FIELD


def test_ioctl_requests() -> None:
    assert f'ord("{chr(rm_autogen.MAGIC)}")' in inspect.getsource(transport._ioctl)


def test_the_switch_log() -> None:
    record = Structure(rm_autogen.STRUCTS["SWITCH_RECORD"])
    data = bytes(range(1, 33))
    assert record.struct.unpack(data) == switch_log._RECORD.unpack(data)
    assert record.size == switch_log._RECORD_SIZE
    assert record.offsets["sequence"] == switch_log._SEQUENCE_AT
    assert Structure(rm_autogen.STRUCTS["EVENT_BUFFER_HEADER"]).offsets["put"] == switch_log._PUT_AT
    assert (rm_autogen.SwitchTag.START, rm_autogen.SwitchTag.END) == (switch_log.START, switch_log.END)
    assert rm_autogen.KERNEL_PID == switch_log.KERNEL_PID


def test_handles() -> None:
    assert (rm_autogen.CLIENT_BASE, rm_autogen.CLIENT_COUNT, rm_autogen.OBJECT_BASE) == (
        discover._CLIENT_BASE,
        discover._CLIENT_COUNT,
        discover._USUAL_BASE,
    )


# -- the region ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["HEADER", "DEVICE", "USE", "SLOT"])
def test_structures_of_the_region(name: str) -> None:
    same(getattr(region_format, name), region_autogen.STRUCTS[name])


@pytest.mark.parametrize("name", ["MAGIC", "VERSION", "DEVICES", "SLOTS", "NO_LIMIT"])
def test_numbers_of_the_region(name: str) -> None:
    assert getattr(region_autogen, name) == getattr(region_format, name)


def test_the_whole_region() -> None:
    whole = Structure(region_autogen.STRUCTS["FILE"])
    assert whole.size == region_format.FILE_BYTES
    assert (whole.offsets["devices"], whole.offsets["slots"]) == (region_format.DEVICES_AT, region_format.SLOTS_AT)
    assert region_autogen.CAP_UNIT == region_file.CAP_UNIT


@pytest.mark.parametrize("name", ["SlotState", "Enforced"])
def test_enums_of_the_region(name: str) -> None:
    ours, theirs = getattr(region_format, name), getattr(region_autogen, name)
    assert {one.name: one.value for one in ours} == {one.name: one.value for one in theirs}
    assert ours.__mro__[1:] == theirs.__mro__[1:]


# -- tenants ---------------------------------------------------------------------------------------


def test_the_tenants_record() -> None:
    assert tenant.RECORD.format == tenant_autogen.RECORD
    assert struct.calcsize(tenant_autogen.RECORD) == tenant.RECORD.size
    assert (tenant_autogen.MAGIC, tenant_autogen.VERSION) == (tenant.MAGIC, tenant.VERSION)
    assert {one.name: one.value for one in tenant.Kind} == {one.name: one.value for one in tenant_autogen.Kind}
    assert tenant_autogen.MAX_DESCRIPTORS == messages.MAX_DESCRIPTORS


def test_how_long_a_tenant_waits() -> None:
    waits = (tenant_autogen.IN_FORCE_MS, tenant_autogen.ROOM_MS, tenant_autogen.LOOK_AGAIN_MS)
    assert tuple(ms / 1e3 for ms in waits) == (tenant.IN_FORCE_S, tenant.ROOM_S, tenant.LOOK_AGAIN_S)


# -- the environment and places --------------------------------------------------------------------


def test_names_in_the_environment() -> None:
    names = environment_autogen
    assert (names.DEVICE, names.EMULATED_GPU) == (environment.DEVICE_VARIABLE, environment.EMULATED_GPU_VARIABLE)
    assert (names.SOCKET, names.MESSAGES) == (paths.SOCKET_VARIABLE, paths.MESSAGES_VARIABLE)
    assert (names.PRELOAD, names.REGION, names.STRICT) == (
        preload.PRELOAD_VARIABLE,
        preload.REGION_VARIABLE,
        preload.STRICT_VARIABLE,
    )
    assert (names.EMULATOR_BUILD, names.NATIVE_BUILD) == (emulated.BUILD_VARIABLE, library.BUILD_VARIABLE)
    assert names.SWITCHES == preload.SWITCHES
    assert names.OWN_SETTINGS == cli_environment._OWN
    assert names.HAMI_SETTINGS == cli_environment._HAMI
    assert tuple(names.HAMI_SETTINGS) == names.PER_GPU
    assert set(names.ON) == preload._ON
    assert set(names.UNLIMITED) == cli_environment._NO_CAP - {"", "0"}
    assert (transport.NvidiaDriver.name, transport.EmulatedDriver.name) == (names.NVIDIA, names.EMULATED)


def test_every_name_that_is_read_is_defined() -> None:
    names = {value for key, value in vars(environment_autogen).items() if key.isupper() and isinstance(value, str)}
    pattern = re.compile(r'"((?:RUNLIST|CUDA|GPU|LIBCUDA|ACTIVE|XDG)_[A-Z0-9_]+)"')
    known = names | {"RUNLIST_BENCH_RANK", "RUNLIST_BENCH_PORT"}
    sources = [ROOT / "src", ROOT / "bench", ROOT / "native", ROOT / "emulator"]
    files = [path for folder in sources for path in folder.rglob("*.[ch]pp")]
    files += [path for folder in sources for path in folder.rglob("*.py")]
    read = {name for path in files if "checks" not in path.parts for name in pattern.findall(path.read_text())}
    assert {name for name in read if not any(one.startswith(name) for one in known)} == set()
    for prefix in bench_library._READ:
        assert any(name.startswith(prefix) for name in names), prefix


def test_places() -> None:
    names = environment_autogen
    assert str(paths.SYSTEM_DIR) == names.SYSTEM_FOLDER
    assert (paths.SOCKET_NAME, paths.MESSAGES_NAME) == (names.STREAM_SOCKET, names.MESSAGES_SOCKET)
    assert tenant._NAME == names.MESSAGES_SOCKET


def test_candidates_of_a_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    names = environment_autogen
    for name in (names.MESSAGES, names.SOCKET, names.DEVICE, names.RUNTIME_DIR):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    own = f"{names.TEMPORARY_FOLDER}/{names.TEMPORARY_PREFIX}1000"
    folders = [own, names.SYSTEM_FOLDER]
    assert tenant.candidates() == [f"{folder}/{names.MESSAGES_SOCKET}" for folder in folders]
    assert str(paths.state_dir(transport.NvidiaDriver())) == own
    monkeypatch.setenv(names.RUNTIME_DIR, "/run/user/1000")
    assert tenant.candidates()[0] == f"/run/user/1000/{names.OWN_FOLDER}/{names.MESSAGES_SOCKET}"
    monkeypatch.setenv(names.DEVICE, names.EMULATED)
    monkeypatch.setenv(names.EMULATED_GPU, "/gpu")
    assert tenant.candidates() == [f"/gpu/{names.MESSAGES_SOCKET}"]
    assert paths.regions_dir(transport.EmulatedDriver(Path("/gpu"))).name == names.REGIONS_FOLDER


# -- the emulated GPU, and the simulator -----------------------------------------------------------


def test_the_emulated_gpus_wire() -> None:
    same(transport._DatagramFile._REQUEST, emulator_autogen.STRUCTS["RM_REQUEST"])
    same(transport._DatagramFile._REPLY, emulator_autogen.STRUCTS["RM_REPLY"])
    assert emulator_autogen.RM_MAGIC == transport._DatagramFile._MAGIC
    driver = transport.EmulatedDriver(Path("/gpu"))
    assert driver._socket == f"/gpu/{emulator_autogen.CONTROL_SOCKET}"
    assert driver.watch_paths() == [Path("/gpu") / emulator_autogen.OPENED_FILE]
    assert transport.NvidiaDriver._PATH.name == emulator_autogen.CONTROL_SOCKET


def test_figures() -> None:
    other_name = {"DEFAULT_SLICE": "COMPUTE_SLICE"}
    ours = {name: value for name, value in vars(timing).items() if name.isupper()}
    assert len(ours) == 24
    assert {name: getattr(calibration_autogen, other_name.get(name, name)) for name in ours} == ours
    assert calibration_autogen.DEVICE_MEMORY == emulated.H200_MEMORY
    slices = {"COMPUTE": calibration_autogen.COMPUTE_SLICE, "COPY": calibration_autogen.COPY_SLICE}
    for name, nanoseconds in slices.items():
        assert rescue.DRIVER_SLICE_US[discover.Engine[name]] * calibration_autogen.MICROSECOND == nanoseconds
