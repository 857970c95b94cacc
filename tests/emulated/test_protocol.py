"""The emulated driver's ioctls, by raw datagrams: what a real 580 driver was seen to answer."""

from __future__ import annotations

import os
import random
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runlist.emulated import EmulatedGpu, EmulatedGpuError, artefacts
from tests.emulated import raw
from tests.fixtures.daemon import wait_for

FreshGpu = Callable[..., EmulatedGpu]

CONTEXT = 'module = begin()\nsay("ready")\nsys.stdin.readline()\n'


def environment(gpu: EmulatedGpu, **more: str) -> dict[str, str]:
    return {**os.environ, **gpu.environment(), **more}


@contextmanager
def tenant(gpu: EmulatedGpu, program: str = CONTEXT, **more: str) -> Iterator[raw.Running]:
    running = raw.Running(environment(gpu, **more), program)
    try:
        assert running.line() == "ready"
        yield running
    finally:
        running.end()


def test_a_context_has_the_objects_that_a_real_one_has(fresh_gpu: FreshGpu) -> None:
    with tenant(fresh_gpu()) as running:
        target = raw.Target(running.pid)
        groups = target.handles(raw.GROUP)
        assert groups == [raw.OBJECT_BASE + offset for offset in (0x15, 0x3E, 0x4C, 0x5A)]
        members = [[c for c in target.handles(raw.CHANNEL) if target.parent(c) == g] for g in groups]
        assert [len(m) for m in members] == [8, 4, 4, 4]
        slices = [struct.unpack("<Q", target.control(g, raw.GET_SLICE, bytes(8))[1])[0] for g in groups]
        assert slices == [2048, 1024, 1024, 1024]
        assert len(target.handles(raw.SUBDEVICE)) == 1
        assert target.parent(target.handles(raw.SUBDEVICE)[0]) == target.handles(raw.DEVICE)[0]
        target.close()


def test_a_second_context_and_a_second_gpu_have_their_own(fresh_gpu: FreshGpu) -> None:
    program = 'begin()\nok(cu.cuCtxCreate(None, 0, 0))\nbegin(1)\nsay("ready")\nsys.stdin.readline()\n'
    with tenant(fresh_gpu(gpus=2), program) as running:
        target = raw.Target(running.pid)
        assert len(target.handles(raw.GROUP)) == 12
        assert len(target.handles(raw.SUBDEVICE)) == 2
        ask = struct.pack("<III256x", 0, 0, 256)
        uuids = {target.control(s, raw.GID_INFO, ask)[1][12:52] for s in target.handles(raw.SUBDEVICE)}
        assert len(uuids) == 2
        assert all(uuid.startswith(b"GPU-") for uuid in uuids)
        target.close()


def test_the_handle_range_can_be_elsewhere(fresh_gpu: FreshGpu) -> None:
    with tenant(fresh_gpu(), RUNLIST_EMULATED_HANDLE_BASE="0xCAFE0000") as running:
        assert raw.Target(running.pid, base=0xCAFE0000).handles(raw.GROUP)[0] == 0xCAFE0015


def test_statuses_are_the_drivers(fresh_gpu: FreshGpu) -> None:
    gpu = fresh_gpu()
    with tenant(gpu) as running, raw.open_file(gpu.dir) as other:
        target = raw.Target(running.pid)
        group = target.handles(raw.GROUP)[0]
        assert raw.control(other.fileno(), target.client, group, raw.GET_SLICE, bytes(8))[0] == raw.BAD_CLIENT
        foreign = raw.own_client(other.fileno())
        assert raw.control(target.fd, foreign, group, raw.GET_SLICE, bytes(8))[0] == raw.BAD_CLIENT
        assert target.control(0x5CFFFFFF, raw.GET_SLICE, bytes(8))[0] == raw.NOT_FOUND
        assert target.control(group, 0xA06C0FFF, bytes(4))[0] == raw.NOT_SUPPORTED
        assert target.control(group, 0xA06C0108, bytes(4))[0] == raw.NOT_SUPPORTED
        assert target.control(target.handles(raw.SUBDEVICE)[0], raw.GET_SLICE, bytes(8))[0] == raw.NOT_SUPPORTED
        assert target.control(group, raw.SET_SLICE, bytes(4))[0] == raw.BAD_ARGUMENT
        assert target.control(target.handles(raw.GROUP)[1], raw.REALTIME, b"\1")[0] == raw.NOT_SUPPORTED
        target.close()


@pytest.mark.parametrize("microseconds", [0, 1, 2048, 10**6, 2**40, 2**64 - 1])
def test_a_slice_of_any_size_is_taken(fresh_gpu: FreshGpu, microseconds: int) -> None:
    with tenant(fresh_gpu()) as running:
        target = raw.Target(running.pid)
        target.set_slice(microseconds)
        out = target.control(target.handles(raw.GROUP)[0], raw.GET_SLICE, bytes(8))[1]
        assert struct.unpack("<Q", out)[0] == microseconds
        target.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="drops root's rights")
def test_some_controls_are_roots(fresh_gpu: FreshGpu) -> None:
    with tenant(fresh_gpu()) as running:
        target = raw.Target(running.pid)
        group = target.handles(raw.GROUP)[0]
        assert target.control(group, raw.INTERLEAVE, struct.pack("<I", 2))[0] == raw.OK
        child = os.fork()
        if child == 0:
            os.setresuid(65534, 65534, 65534)
            refused = target.control(group, raw.INTERLEAVE, struct.pack("<I", 2))[0] == raw.NO_PERMISSION
            taken = target.control(group, raw.SET_SLICE, struct.pack("<Q", 7))[0] == raw.OK
            os._exit(0 if refused and taken else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        target.close()


def test_client_handles_only_go_up(fresh_gpu: FreshGpu) -> None:
    directory = fresh_gpu().dir
    handles = []
    for _ in range(3):
        with raw.open_file(directory) as opened:
            handles.append(raw.own_client(opened.fileno()))
    assert handles == sorted(set(handles))


def test_objects_outlive_their_process_while_a_copy_is_held(fresh_gpu: FreshGpu) -> None:
    with tenant(fresh_gpu()) as running:
        target = raw.Target(running.pid)
        copy = os.dup(target.fd)
        running.end()
        group = target.handles(raw.GROUP)[0]
        target.close()
        assert raw.control(copy, target.client, group, raw.GET_SLICE, bytes(8))[0] == raw.OK
        os.close(copy)


def test_hostile_datagrams_do_no_harm(fresh_gpu: FreshGpu) -> None:
    gpu = fresh_gpu()
    chance = random.Random(1)
    with raw.open_file(gpu.dir) as hostile:
        client = raw.own_client(hostile.fileno())
        for _ in range(500):
            nr = chance.choice([raw.FREE, raw.CONTROL, raw.ALLOC, 0, 0xFFFFFFFF])
            sizes = [chance.choice([0, 15, 16, 32, 48, 2**16, 2**31, 2**32 - 1]) for _ in range(2)]
            data = struct.pack("<IIII", chance.choice([raw.MAGIC, raw.MAGIC, 0]), nr, *sizes)
            data += chance.randbytes(chance.choice([0, 1, 32, 64, 4096, 60000]))
            mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with mine, theirs:
                socket.send_fds(hostile, [data], [theirs.fileno()] * chance.choice([0, 1, 1, 2, 12]))
        # Well-formed frames around nonsense.
        for _ in range(300):
            argument = struct.pack("<II", client, chance.choice([client, 1])) + chance.randbytes(24)
            raw.ioctl(hostile.fileno(), raw.CONTROL, argument, chance.randbytes(chance.choice([0, 4, 8, 16, 536])))
    for _ in range(50):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as calls:
            calls.connect(str(gpu.dir / "nvidia0"))
            calls.send(chance.randbytes(chance.choice([1, 100, 200])))
    with tenant(gpu) as running:
        raw.Target(running.pid).close()


def test_hostile_cuda_calls_do_no_harm(fresh_gpu: FreshGpu) -> None:
    gpu = fresh_gpu(memory=1 << 30)
    chance = random.Random(2)
    size = 152  # of a request
    numbers = [0, 1, 2, 7, 64, 4095, 4096, 2**31, 2**32 - 1]

    def request(call: int) -> bytes:
        pick = chance.choice
        head = struct.pack(
            "<4I", call, pick(range(8)), pick([0, 0, 1, 64, 2**32 - 1]), pick([0, 0, 1, 4095, 2**32 - 1])
        )
        head += struct.pack("<QqIi", pick([1, 1, 2, 2**63]), 0, pick([0, 0, 1]), 0)
        head += struct.pack("<QQ", pick([0, 4096, 0xA << 56, 2**64 - 1]), pick([0, 1, 4096, 2**40, 2**64 - 1]))
        tail = struct.pack("<8I", *chance.choices([0, 1, 2, 3, 4, 5, 2**31, 2**32 - 1], k=8))
        return (head + tail + chance.randbytes(size))[:size]

    with raw.open_file(gpu.dir) as control:
        client = raw.own_client(control.fileno())
        for _ in range(150):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as calls:
                calls.connect(str(gpu.dir / "nvidia0"))
                calls.settimeout(60)
                hello = struct.pack("<I52x4I", 1, client, *chance.choices(numbers, k=3))
                try:
                    calls.send(hello.ljust(size, b"\0"))
                    for _ in range(30):
                        calls.send(
                            request(
                                chance.choice([2, 4, 10, 12, 12, 12, 13, 14, 3, 5, 6, 7, 8, 9, 11, 16, 17, 18, 19, 99])
                            )
                        )
                except OSError:
                    pass  # it hung up: that is its right
    with tenant(gpu) as running:
        raw.Target(running.pid).close()


def test_objects_freed_under_a_process_end_it_alone(fresh_gpu: FreshGpu) -> None:
    program = """
module = begin()
stream = ok(cu.cuStreamCreate(1))
flag = int(ok(cu.cuMemHostAlloc(64, 2)))
launch(kernel(module, b"wait_flag_u32"), (1,), (1,), (U64, U32), flag, 1, stream=stream)
say("ready")
say(code(cu.cuStreamSynchronize(stream)))
"""
    gpu = fresh_gpu()
    with tenant(gpu, program) as victim, tenant(gpu) as other:
        target = raw.Target(victim.pid)
        freed = struct.pack("<IIII", target.client, 0, target.client, 0xFFFF)
        assert struct.unpack("<IIII", raw.ioctl(target.fd, raw.FREE, freed)[1])[3] == raw.OK
        assert victim.line() == "46"  # CUDA_ERROR_DEVICE_UNAVAILABLE
        raw.Target(other.pid).close()
        target.close()


def test_a_suspended_process_stands_still_and_goes_on(fresh_gpu: FreshGpu) -> None:
    program = """
module = begin()
n, rounds = 1056 * 256, 20000
data = alloc(4 * n)
f = kernel(module, b"accumulate_lcg")
stream = ok(cu.cuStreamCreate(1))
say("ready")
for _ in sys.stdin:
    ok(cu.cuMemsetD32(data, 1, n))
    ok(cu.cuCtxSynchronize())
    for _ in range(50):
        launch(f, (1056,), (256,), (U64, U64, U32), data, n, rounds, stream=stream)
    say("running")
    ok(cu.cuStreamSynchronize(stream))
    values = set(struct.unpack(f"<{n}I", get(data, 4 * n)))
    say("right" if values == {lcg(1, 50 * rounds)} else "wrong")
"""
    with tenant(fresh_gpu(), program) as running:
        target = raw.Target(running.pid)
        running.tell()
        assert running.line() == "running"
        for _ in range(5):
            target.enable(False)
            time.sleep(0.05)
            target.enable(True)
        target.enable(False)
        time.sleep(0.5)  # all of the work takes some 40 ms
        assert running.process.poll() is None
        target.enable(True)
        assert running.line() == "right"
        target.close()


def test_two_short_slices_livelock_and_one_suspended_frees_the_other(fresh_gpu: FreshGpu) -> None:
    program = """
module = begin()
n = 1056 * 256
data = alloc(4 * n)
f = kernel(module, b"accumulate_lcg")
stream = ok(cu.cuStreamCreate(1))
say("ready")
sys.stdin.readline()
ok(cu.cuMemsetD32(data, 1, n))
ok(cu.cuCtxSynchronize())
for i in range(1000000):
    launch(f, (1056,), (256,), (U64, U64, U32), data, n, 20000, stream=stream)
    ok(cu.cuStreamSynchronize(stream))
    say(i)
"""
    gpu = fresh_gpu()
    with tenant(gpu, program) as one, tenant(gpu, program) as two:
        targets = [raw.Target(running.pid) for running in (one, two)]
        for target in targets:
            target.set_slice(1)
        targets[1].enable(False)
        one.tell()
        two.tell()
        assert one.line() == "0"
        targets[1].enable(True)
        time.sleep(0.3)
        one.pending()
        time.sleep(0.3)
        assert one.pending() == b""
        targets[1].enable(False)
        wait_for(lambda: one.pending() != b"")
        for target in targets:
            target.close()


def test_a_directory_has_one_device(fresh_gpu: FreshGpu) -> None:
    gpu = fresh_gpu()
    with pytest.raises(EmulatedGpuError, match="already running"):
        EmulatedGpu(gpu.dir).start()


def test_a_dead_devices_directory_is_taken_over() -> None:
    directory = Path(f"/tmp/runlist-stale-{os.getpid()}")
    command = [str(artefacts() / "runlist-emulated-gpu"), "--dir", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as dead:
        assert dead.stdout is not None
        assert dead.stdout.readline() == b"ready\n"
        dead.kill()
    assert (directory / "nvidiactl").exists()
    with EmulatedGpu(directory) as gpu, tenant(gpu):
        pass
    assert not (directory / "nvidiactl").exists()
