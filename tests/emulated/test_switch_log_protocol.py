"""The emulated GPU's context-switch log, by raw datagrams: what a real 580 driver and an H200 were seen to do."""

from __future__ import annotations

import mmap
import os
import random
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

import pytest

from runlist.emulated import EmulatedGpu
from tests.emulated import raw
from tests.emulated.raw import END, START

FreshGpu = Callable[..., EmulatedGpu]

KERNEL_US = 0.574 * 64 * 20000 / 1000
"""Of the program below: 64 warps on each processor."""

PROGRAM = """
module = begin(int(os.environ.get("GPU", "0")))
n, rounds = 1056 * 256, 20000
data = alloc(4 * n)
f = kernel(module, b"accumulate_lcg")
stream = ok(cu.cuStreamCreate(1))
ok(cu.cuCtxSynchronize())
say("ready")
for line in sys.stdin:
    count, pause, times = line.split()
    for _ in range(int(times)):
        for _ in range(int(count)):
            launch(f, (1056,), (256,), (U64, U64, U32), data, n, rounds, stream=stream)
        ok(cu.cuStreamSynchronize(stream))
        time.sleep(float(pause))
    say("done")
"""
GAP_NS, SLICE_NS, NEAR_NS = 84_000, 2_048_000, 5_000


job = partial(raw.job, PROGRAM)


def start(running: raw.Running, kernels: int, pause: float = 0, times: int = 1) -> None:
    """So many kernels at once, `times` times, with pauses of so many seconds in between."""
    running.tell(f"{kernels} {pause} {times}")


def done(running: raw.Running) -> None:
    assert running.line() == "done"


@contextmanager
def log_of(gpu: EmulatedGpu, number: int = 0, **options: int) -> Iterator[raw.SwitchLog]:
    log = raw.SwitchLog(gpu.dir, number, **options)
    try:
        yield log
    finally:
        log.close()


def tags(records: list[raw.Record]) -> list[int]:
    return [record.tag for record in records]


def test_two_jobs_take_turns_with_a_gap(fresh_gpu: FreshGpu) -> None:
    gpu = fresh_gpu()
    with log_of(gpu) as log, job(gpu) as one, job(gpu) as two:
        began = time.time_ns()
        for running in (one, two):
            start(running, 300)
        done(one)
        done(two)
        records = log.read()
        ended = time.time_ns()
        assert {record.pid for record in records} == {one.pid, two.pid}
        assert len({record.context for record in records}) == 2
        assert tags(records) == [START, END] * (len(records) // 2) + [START] * (len(records) % 2)
        assert [record.sequence for record in records] == list(range(len(records)))
        assert began < records[0].time
        assert records[-1].time < ended
        held: dict[int, list[int]] = {one.pid: [], two.pid: []}
        for first, second in pairwise(records):
            assert first.time < second.time
            if first.tag == START:
                assert (first.pid, first.context) == (second.pid, second.context)
                held[first.pid].append(second.time - first.time)
            else:
                assert second.time - first.time == pytest.approx(GAP_NS, abs=NEAR_NS)
        # Both have work for 220 ms of their own, so that most turns are whole slices.
        for turns in held.values():
            assert sorted(turns)[len(turns) // 2] == pytest.approx(SLICE_NS, abs=NEAR_NS)
        held[records[-1].pid].append(ended - records[-1].time)  # it is there yet
        assert all(sum(turns) > 300 * KERNEL_US * 1000 for turns in held.values())


def test_a_job_that_is_alone_stays(fresh_gpu: FreshGpu) -> None:
    gpu = fresh_gpu()
    with log_of(gpu) as log, job(gpu) as alone:
        start(alone, 20, 0.01, 5)
        done(alone)
        time.sleep(0.1)
        records = log.read()
        assert [(record.tag, record.pid) for record in records] == [(START, alone.pid)]
        alone.end()
        ended = log.wait(1)
        assert [(record.tag, record.pid, record.context) for record in ended] == [(END, alone.pid, records[0].context)]


def test_an_idle_job_goes_when_another_comes(fresh_gpu: FreshGpu) -> None:
    gpu = fresh_gpu()
    with log_of(gpu) as log, job(gpu) as idle, job(gpu) as other:
        start(idle, 1)
        done(idle)
        assert tags(log.read()) == [START]
        start(other, 1)
        done(other)
        end, begin = log.read()
        assert (end.tag, end.pid, begin.tag, begin.pid) == (END, idle.pid, START, other.pid)
        assert begin.time - end.time == pytest.approx(GAP_NS, abs=NEAR_NS)


def test_suspension_ends_a_residency(fresh_gpu: FreshGpu) -> None:
    gpu = fresh_gpu()
    with log_of(gpu) as log, job(gpu) as running:
        target = raw.Target(running.pid)
        start(running, 900)
        assert tags(log.wait(1)) == [START]
        for _ in range(3):
            asked = time.time_ns()
            target.enable(False)
            (end,) = log.read()
            # It is off the GPU when the call returns: 530 to 720 us on an H200.
            assert (end.tag, end.pid) == (END, running.pid)
            assert 450_000 < end.time - asked < time.time_ns() - asked
            time.sleep(0.02)
            assert log.read() == []
            asked = time.time_ns()
            target.enable(True)
            (begin,) = log.wait(1)
            assert (begin.tag, begin.pid) == (START, running.pid)
            assert begin.time - asked > 250_000  # 260 to 320 us there
        target.close()


def test_suspension_ends_an_idle_residency_and_work_begins_another(fresh_gpu: FreshGpu) -> None:
    gpu = fresh_gpu()
    with log_of(gpu) as log, job(gpu) as running:
        target = raw.Target(running.pid)
        start(running, 1)
        done(running)
        assert tags(log.read()) == [START]
        target.enable(False)
        assert tags(log.read()) == [END]
        target.enable(True)
        time.sleep(0.05)
        assert log.read() == []
        start(running, 1)
        done(running)
        assert tags(log.read()) == [START]
        target.close()


def test_preemption_ends_a_residency(fresh_gpu: FreshGpu) -> None:
    gpu = fresh_gpu()
    with log_of(gpu) as log, job(gpu) as running:
        target = raw.Target(running.pid)
        start(running, 200)
        log.wait(1)
        asked = time.time_ns()
        target.preempt()
        end, begin = log.wait(2)
        assert (end.tag, begin.tag) == (END, START)
        assert end.time - asked > 290_000
        assert begin.time - end.time == pytest.approx(120_000, abs=NEAR_NS)
        done(running)
        target.preempt()
        assert tags(log.read()) == [END]
        time.sleep(0.05)
        assert log.read() == []
        target.preempt()  # not there: nothing to end
        assert log.read() == []
        target.close()


def test_a_freed_context_ends(fresh_gpu: FreshGpu) -> None:
    gpu = fresh_gpu()
    with log_of(gpu) as log, job(gpu) as running:
        start(running, 1)
        done(running)
        target = raw.Target(running.pid)
        assert raw.free(target.fd, target.client, target.handles(raw.GROUP)[0]) == raw.OK
        assert [(record.tag, record.pid) for record in log.read()] == [(START, running.pid), (END, running.pid)]
        target.close()


def test_records_come_by_themselves_and_at_once_with_a_flush(fresh_gpu: FreshGpu) -> None:
    gpu = fresh_gpu()
    with log_of(gpu) as log, job(gpu) as one, job(gpu) as two:
        for running in (one, two):
            start(running, 5, times=100)
        log.wait(10)
        newest = log.read()[-1:]
        assert not newest or time.time_ns() - newest[0].time < 1e9
        # Without flushes they come in lots, each some 33 ms after the one before.
        lots, until = [], time.monotonic() + 0.4
        while time.monotonic() < until:
            if lot := log.take():
                lots.append((time.monotonic(), lot))
            time.sleep(0.001)
        assert 3 <= len(lots) <= 14
        assert sum(len(lot) for _, lot in lots) > 100
        one.end()
        two.end()


def test_the_newest_records_are_kept(fresh_gpu: FreshGpu) -> None:
    gpu = fresh_gpu()
    with log_of(gpu, count=5) as small, log_of(gpu) as log, job(gpu) as one, job(gpu) as two:
        for running in (one, two):
            start(running, 30)
        done(one)
        done(two)
        records = log.read()
        small.flush()
        assert small.put == len(records) % 5
        ring = sorted(small.record(index).sequence for index in range(5))
        assert ring == [record.sequence for record in records[-5:]]
        assert small.record((small.put - 1) % 5) == records[-1]
        assert struct.unpack_from("<I4xQQ", small.header) == (0, 0, 0)  # get, count, drops


def test_a_disabled_buffer_misses_records_and_their_numbers_show_it(fresh_gpu: FreshGpu) -> None:
    gpu = fresh_gpu()
    with log_of(gpu) as log, log_of(gpu) as other, job(gpu) as one, job(gpu) as two:
        start(one, 1)
        done(one)
        assert [record.sequence for record in log.read()] == [0]
        log.enable(False)
        start(two, 1)
        done(two)
        assert log.read() == []
        log.enable(True)
        start(one, 1)
        done(one)
        assert [record.sequence for record in log.read()] == [3, 4]
        assert [record.sequence for record in other.read()] == [0, 1, 2, 3, 4]


def test_each_gpu_has_its_own_log(fresh_gpu: FreshGpu) -> None:
    gpu = fresh_gpu(gpus=2)
    with log_of(gpu, 0) as first, log_of(gpu, 1) as second, job(gpu, GPU="1") as running:
        ids = struct.unpack("<32I", first.control(first.client, raw.ATTACHED_IDS, b"\xff" * 128)[1])
        assert sum(number != 0xFFFFFFFF for number in ids) == 2
        start(running, 1)
        done(running)
        assert first.read() == []
        assert [(record.tag, record.pid) for record in second.read()] == [(START, running.pid)]
        ask = struct.pack("<III256x", 0, 0, 256)
        uuids = [log.control(log.SUBDEVICE, raw.GID_INFO, ask)[1][12:52] for log in (first, second)]
        assert uuids[0] != uuids[1]


def test_the_clock_is_the_walls(fresh_gpu: FreshGpu) -> None:
    with log_of(fresh_gpu()) as log:
        before = time.time_ns()
        status, answer = log.control(log.SUBDEVICE, raw.GET_TIME, bytes(8))
        assert status == raw.OK
        assert before <= struct.unpack("<Q", answer)[0] <= time.time_ns()


def test_clients_of_mps_are_one_context_of_the_first(fresh_gpu: FreshGpu) -> None:
    gpu = fresh_gpu()
    mps = {"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}
    with log_of(gpu) as log, job(gpu, **mps) as first, job(gpu, **mps) as second:
        for running in (first, second):
            start(running, 20)
        done(first)
        done(second)
        assert [(record.tag, record.pid) for record in log.read()] == [(START, first.pid)]


def test_the_log_can_only_be_read(fresh_gpu: FreshGpu) -> None:
    with log_of(fresh_gpu()) as log:
        status, (descriptor,) = raw.map_memory(log.fd, log.client, log.RING, 4096)
        assert status == raw.OK
        with pytest.raises(PermissionError):
            mmap.mmap(descriptor, 4096)
        for attempt in (
            lambda: os.ftruncate(descriptor, 0),
            lambda: os.ftruncate(descriptor, 1 << 30),
            lambda: os.write(descriptor, b"x"),
        ):
            with pytest.raises(PermissionError):
                attempt()
        os.close(descriptor)


def test_wrong_allocations_are_refused(fresh_gpu: FreshGpu) -> None:
    gpu = fresh_gpu(gpus=2)
    with log_of(gpu, count=64) as log, log_of(gpu) as foreign:
        fd, client = log.fd, log.client

        def status(cls: int, parameters: bytes, parent: int = client, handle: int = 0xB0000001) -> int:
            return raw.allocate(fd, client, parent, handle, cls, parameters)

        good = raw.memory_parameters(4096)
        for size in (0, 127, 129, 4096):
            assert status(raw.MEMORY, good.ljust(size, b"\0")[:size]) == raw.BAD_ARGUMENT
        assert status(raw.MEMORY, raw.memory_parameters(0)) == raw.BAD_ARGUMENT
        assert status(raw.MEMORY, raw.memory_parameters(4096, read_only=False)) == raw.BAD_ARGUMENT
        for size in (1 << 40, 2**64 - 1):
            assert status(raw.MEMORY, raw.memory_parameters(size)) == raw.NO_MEMORY
        assert status(raw.MEMORY, good, parent=log.DEVICE) == raw.BAD_OBJECT
        assert status(raw.MEMORY, good, handle=log.RING) == raw.DUPLICATE
        assert raw.allocate(fd, foreign.client, foreign.client, 0, raw.MEMORY, good) == raw.BAD_CLIENT
        assert status(0x90CF, good) == raw.BAD_CLASS
        for number in (2, 2**32 - 1):
            assert status(raw.DEVICE, struct.pack("<I52x", number)) == raw.BAD_ARGUMENT

        def buffer(*values: int, **more: int) -> int:
            return status(raw.EVENT_BUFFER, raw.event_buffer_parameters(*values, **more))

        parts = (log.SUBDEVICE, log.HEADER, log.RING)
        for count in (0, 1, 129, 65537, 2**32 - 1):  # there is a page: room for 128
            assert buffer(*parts, count) == raw.BAD_ARGUMENT
        for record_size in (0, 31, 64, 2**31, 2**32 - 1):
            assert buffer(*parts, 64, record_size=record_size) == raw.BAD_ARGUMENT
        assert buffer(log.DEVICE, log.HEADER, log.RING, 64) == raw.BAD_OBJECT
        assert buffer(0, log.HEADER, log.RING, 64) == raw.BAD_OBJECT
        assert buffer(log.SUBDEVICE, log.HEADER, 0, 64) == raw.NOT_FOUND
        assert buffer(log.SUBDEVICE, 0x1234, log.RING, 64) == raw.NOT_FOUND
        assert buffer(log.SUBDEVICE, log.HEADER, log.DEVICE, 64) == raw.BAD_ARGUMENT
        assert buffer(log.SUBDEVICE, log.RING, log.RING, 64) == raw.BAD_ARGUMENT
        assert status(raw.EVENT_BUFFER, bytes(71)) == raw.BAD_ARGUMENT
        assert status(raw.EVENT_BUFFER, bytes(73)) == raw.BAD_ARGUMENT
        taken = [status(raw.MEMORY, good, handle=0xB0000000 + i) for i in range(200)]
        assert set(taken) == {raw.OK, raw.NO_RESOURCES}
        assert raw.allocate(foreign.fd, foreign.client, foreign.client, 0xB0000000, raw.MEMORY, good) == raw.OK


def test_wrong_controls_are_refused(fresh_gpu: FreshGpu) -> None:
    gpu = fresh_gpu(gpus=2)
    with log_of(gpu) as log, log_of(gpu) as foreign:
        for size in (0, 23, 25, 4096):
            parameters = raw.bind_parameters(log.BUFFER).ljust(size, b"\0")[:size]
            assert log.control(log.SUBDEVICE, raw.BIND, parameters)[0] == raw.BAD_ARGUMENT
        assert log.control(log.SUBDEVICE, raw.BIND, raw.bind_parameters(0x1234))[0] == raw.NOT_FOUND
        assert log.control(log.SUBDEVICE, raw.BIND, raw.bind_parameters(log.RING))[0] == raw.BAD_ARGUMENT
        assert log.control(log.SUBDEVICE, raw.BIND, raw.bind_parameters(log.BUFFER, 64))[0] == raw.BAD_ARGUMENT
        assert log.control(log.DEVICE, raw.BIND, raw.bind_parameters(log.BUFFER))[0] == raw.NOT_SUPPORTED
        log.allocate(log.client, 0xB0000001, raw.DEVICE, struct.pack("<I52x", 1))
        log.allocate(0xB0000001, 0xB0000002, raw.SUBDEVICE, struct.pack("<I", 0))
        assert log.control(0xB0000002, raw.BIND, raw.bind_parameters(log.BUFFER))[0] == raw.BAD_ARGUMENT
        for flags, answer in ((4, raw.BAD_ARGUMENT), (1, raw.NOT_SUPPORTED), (0, raw.NOT_SUPPORTED)):
            assert log.control(log.BUFFER, raw.ENABLE, struct.pack("<BxxxI", 1, flags))[0] == answer
        assert log.control(log.RING, raw.FLUSH)[0] == raw.NOT_SUPPORTED
        assert log.control(log.BUFFER, raw.FLUSH, bytes(4))[0] == raw.BAD_ARGUMENT
        assert raw.control(foreign.fd, log.client, log.BUFFER, raw.FLUSH, b"")[0] == raw.BAD_CLIENT
        # No parameters, but a pointer to some.
        argument = struct.pack("<IIIIQII", log.client, log.BUFFER, raw.FLUSH, 0, 0x1000, 0, 0xFFFF)
        _, argument, _ = raw.ioctl(log.fd, raw.CONTROL, argument)
        assert struct.unpack("<IIIIQII", argument)[6] == raw.BAD_ARGUMENT


def test_wrong_mappings_are_refused(fresh_gpu: FreshGpu) -> None:
    gpu = fresh_gpu()
    with log_of(gpu, count=128) as log, log_of(gpu) as foreign:

        def status(memory: int, length: int = 4096, **more: int) -> int:
            code, descriptors = raw.map_memory(log.fd, log.client, memory, length, **more)
            assert descriptors == []
            return code

        assert status(log.SUBDEVICE) == raw.NOT_SUPPORTED
        assert status(log.BUFFER) == raw.NOT_SUPPORTED
        assert status(0x1234) == raw.NOT_FOUND
        for length in (0, 4097, 2**64 - 1):
            assert status(log.RING, length) == raw.BAD_LIMIT
        assert status(log.RING, 4096, offset=4096) == raw.BAD_ARGUMENT
        assert status(log.RING, 4096, flags=0) == raw.BAD_ARGUMENT
        assert status(log.RING, 4096, device=log.DEVICE) == raw.BAD_OBJECT
        assert raw.map_memory(log.fd, foreign.client, foreign.RING, 4096) == (raw.BAD_CLIENT, [])
        for size in (0, 55, 57):
            assert raw.ioctl(log.fd, raw.MAP, bytes(size))[0] == 22  # EINVAL


def test_a_buffer_bound_twice_gets_each_record_once(fresh_gpu: FreshGpu) -> None:
    gpu = fresh_gpu()
    with log_of(gpu) as log, job(gpu) as running:
        assert log.control(log.SUBDEVICE, raw.BIND, raw.bind_parameters(log.BUFFER))[0] == raw.OK
        start(running, 1)
        done(running)
        assert tags(log.read()) == [START]


@pytest.mark.parametrize("name", ["HEADER", "RING", "SUBDEVICE", "DEVICE", "BUFFER"])
def test_a_buffer_goes_with_what_it_is_made_of(fresh_gpu: FreshGpu, name: str) -> None:
    gpu = fresh_gpu()
    with log_of(gpu) as log, log_of(gpu) as other, job(gpu) as running:
        assert raw.free(log.fd, log.client, getattr(log, name)) == raw.OK
        assert log.control(log.BUFFER, raw.FLUSH)[0] == raw.NOT_FOUND
        start(running, 1)
        done(running)
        assert tags(other.read()) == [START]
        assert log.take() == []  # its mapping is still there


def test_readers_come_and_go_under_load(fresh_gpu: FreshGpu) -> None:
    gpu = fresh_gpu()
    chance = random.Random(3)
    with job(gpu) as one, job(gpu) as two, log_of(gpu) as steady:
        for running in (one, two):
            start(running, 5, times=60)
        for _ in range(30):
            with log_of(gpu, count=chance.choice([2, 3, 64, 65536])) as log:
                time.sleep(0.003)
                if chance.random() < 0.5:
                    log.flush()
        done(one)
        done(two)
        records = steady.read()
        assert [record.sequence for record in records] == list(range(len(records)))


def test_hostile_calls_do_no_harm(fresh_gpu: FreshGpu) -> None:
    gpu = fresh_gpu(gpus=2)
    chance = random.Random(4)
    with log_of(gpu) as steady, job(gpu) as running, log_of(gpu, count=64) as log:
        handles = [0, log.client, *range(0xA0000001, 0xA0000010)]
        numbers = [0, 1, 2, 31, 32, 64, 4096, 1 << 22, 1 << 29, 2**31, 2**32 - 1, *handles]
        sizes = {raw.DEVICE: 56, raw.SUBDEVICE: 4, raw.MEMORY: 128, raw.EVENT_BUFFER: 72}
        commands = {raw.BIND: 24, raw.ENABLE: 8, raw.FLUSH: 0, raw.GET_TIME: 8, raw.GID_INFO: 268}

        def words(size: int) -> bytes:
            return struct.pack(f"<{size // 4}I", *chance.choices(numbers, k=size // 4))

        for _ in range(1500):
            kind = chance.randrange(4)
            if kind == 0:
                cls = chance.choice(list(sizes))
                parent, handle = chance.choices(handles, k=2)
                raw.allocate(log.fd, log.client, parent, handle, cls, words(sizes[cls]))
            elif kind == 1:
                command = chance.choice(list(commands))
                log.control(chance.choice(handles), command, words(commands[command]))
            elif kind == 2:
                argument = struct.pack("<III4x", log.client, *chance.choices(handles, k=2)) + words(40)
                for descriptor in raw.ioctl_with_descriptors(log.fd, raw.MAP, argument)[3]:
                    os.close(descriptor)
            elif chance.random() < 0.1:
                raw.free(log.fd, log.client, chance.choice(handles[2:]))
        start(running, 1)
        done(running)
        assert tags(steady.read()) == [START]
