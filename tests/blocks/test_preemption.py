"""Kernels stopped between blocks: each logical block runs once, whoever stops it, when, and how often."""

from __future__ import annotations

import itertools
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runlist import blocks
from runlist.blocks.device import Device, Memory
from runlist.blocks.host import Host
from runlist.errors import RunlistError, UsageError
from tests.fixtures import blocks_stopper

STEPS = 200

LONG = 3_000_000
"""Rounds of a block that takes some milliseconds: what has hundreds of these does not end before it is stopped."""

COUNT = r"""
// Each block counts itself, and spins a while, some longer than others.
extern "C" __global__ void count(unsigned* runs, const unsigned* spins, int wanted) {
  __shared__ unsigned tile[32];
  // Not a local variable: CUDA 13.0's compiler drops a loop over one, volatile or not.
  __shared__ volatile unsigned spun;
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  tile[threadIdx.x] = block + threadIdx.x;
  __syncthreads();
  // The others still meet barriers.
  if (wanted < 0 ? threadIdx.x < (unsigned)-wanted : threadIdx.x >= (unsigned)wanted) return;
  __syncthreads();
  if (tile[31 - threadIdx.x] != block + 31 - threadIdx.x) atomicAdd(runs + block, 1000000u);
  if (threadIdx.x == (wanted < 0 ? 31 : 0)) {
    for (unsigned each = 0; each < *spins * (1 + block % 3); ++each) spun = each;
    atomicAdd(runs + block, 1u);
  }
}

// No order of the blocks gives the same but one in which every kernel begins when the one before has ended.
extern "C" __global__ void fold(unsigned long long* state, int factor) {
  __shared__ volatile unsigned spun;
  if (threadIdx.x != 0) return;
  for (unsigned each = 0; each < 2000; ++each) spun = each;
  state[blockIdx.x] = state[blockIdx.x] * factor + state[gridDim.x + blockIdx.x] + blockIdx.x;
}
extern "C" __global__ void mix(unsigned long long* state) {
  if (threadIdx.x == 0) state[gridDim.x + blockIdx.x] = state[(blockIdx.x * 7 + 3) % gridDim.x];
}
"""


def numbers(host: Device, memory: Memory, code: str = "I") -> list[int]:
    data = host.read(memory)
    return list(struct.unpack(f"={len(data) // struct.calcsize('=' + code)}{code}", data))


class Counting:
    """The kernel `count` over a grid."""

    def __init__(self, host: Device, grid: tuple[int, ...], spin: int, wanted: int = 20) -> None:
        self.host = host
        self.kernel = blocks.resumable(COUNT, "count", device=host)
        self.grid = grid
        total = 1
        for each in grid:
            total *= each
        self.runs = host.allocate(4 * total)
        self.spins = host.allocate(4)
        host.write(self.spins, struct.pack("=I", spin))
        self.arguments = (self.runs, self.spins, wanted)

    def launch(self, physical: int | None = None, page: Path | None = None) -> blocks.BLPExecutor:
        return self.kernel.launch(self.grid, 32, self.arguments, physical=physical, page=page)

    def hurry(self) -> None:
        """The blocks that are still to come are short."""
        self.host.write(self.spins, struct.pack("=I", 1))

    def counted(self) -> set[int]:
        return set(numbers(self.host, self.runs))


@pytest.mark.parametrize("grid", [(1,), (97,), (7, 5), (3, 4, 5), (1, 1, 6)])
@pytest.mark.parametrize("physical", [1, 4, 500, None])
def test_unstopped_every_block_runs_once(host: Host, grid: tuple[int, ...], physical: int | None) -> None:
    counting = Counting(host, grid, 1)
    with counting.launch(physical) as running:
        assert running.wait()
    assert counting.counted() == {1}


def test_where_the_compiler_checks_jumps(host: Host) -> None:
    """As that of Ubuntu does by itself: a thread of a block has a stack of its own, which is no wild jump."""
    module = host.compile(COUNT, "checked.cu", ["-D_FORTIFY_SOURCE=2"])
    runs, spins = host.allocate(4 * 40), host.allocate(4)
    host.write(spins, struct.pack("=I", 1))
    host.launch(module.function("count"), (40, 1, 1), (32, 1, 1), (runs, spins, 20))
    assert set(numbers(host, runs)) == {1}


@pytest.mark.parametrize("wanted", [0, 1, 31, 32, 40, -1, -31, -32])
def test_threads_that_return_early_hold_up_no_barrier(host: Host, wanted: int) -> None:
    counting = Counting(host, (50,), 1, wanted)
    with counting.launch(3) as running:
        assert running.wait(30)
    assert counting.counted() == ({0} if wanted in (0, -32) else {1})


def test_it_stops_between_blocks_and_resumes_there(host: Host) -> None:
    counting = Counting(host, (400,), LONG)
    with counting.launch() as running:
        assert running.stop(30)
        saved = running.save()
        assert 0 <= saved.next < 400
        runs = numbers(host, counting.runs)
        assert runs == [1] * saved.next + [0] * (400 - saved.next)  # what was taken has run wholly, and nothing else
        counting.hurry()
        for none in (0, -1):
            with pytest.raises(UsageError, match="at least one physical block"):
                running.resume(physical=none)
        assert running.save() == saved
        running.resume(physical=1)
        assert running.wait(60)
    assert counting.counted() == {1}


def test_a_page_may_be_named_as_any_path(host: Host, tmp_path: Path) -> None:
    counting = Counting(host, (400,), LONG)
    page = str(tmp_path / "page")
    with counting.kernel.launch((400,), 32, counting.arguments, page=page) as running, blocks.Stopper(page) as stopper:
        stopper.stop()
        assert not running.wait(30)
        assert running.save().next < 400


def test_saved_numbers_and_data_are_all_that_a_later_process_needs(host: Host) -> None:
    counting = Counting(host, (300,), LONG)
    with counting.launch() as running:
        running.stop(30)
        saved, data = running.save(), host.read(counting.runs)
    other = Counting(host, (300,), 1)
    host.write(other.runs, data)
    with blocks.BLPExecutor(host) as later:
        later.add(other.kernel.function, 300, 32, other.arguments)
        later.resume(blocks.Saved(saved.step, saved.next))
        assert later.wait(30)
    assert other.counted() == {1}


def test_a_stop_after_the_end_and_a_resume_of_what_has_ended_change_nothing(host: Host) -> None:
    counting = Counting(host, (40,), 1)
    with counting.launch() as running:
        assert running.wait(30)
        for _ in range(3):
            assert not running.stop(30)
            running.resume()
            assert running.wait(30)
        assert running.save() == blocks.Saved(1, 0)
    assert counting.counted() == {1}


def test_asked_before_it_begins_it_takes_no_block(host: Host, page_path: Path) -> None:
    counting = Counting(host, (40,), 1)
    with blocks.Stopper(page_path) as stopper:
        stopper.stop()
        with counting.launch(page=page_path) as running:
            assert not running.wait(30)
            assert running.save() == blocks.Saved(0, 0)
            assert counting.counted() == {0}
            stopper.resume()
            running.resume()
            assert running.wait(30)
    assert counting.counted() == {1}


def test_two_who_stop_both_have_to_let_go(host: Host, page_path: Path) -> None:
    counting = Counting(host, (200,), LONG)
    with counting.launch(page=page_path) as running, blocks.Stopper(page_path) as one, blocks.Stopper(page_path) as two:
        one.stop()
        two.stop()
        assert not running.wait(30)
        before = running.save()
        one.resume()
        running.resume()
        assert not running.wait(30)
        assert running.save() == before
        two.resume()
        counting.hurry()
        running.resume()
        assert running.wait(60)
    assert counting.counted() == {1}


def test_what_is_queued_behind_one_that_left_early_takes_no_block(host: Host) -> None:
    """Nobody asks for a stop any more by then."""
    counting = Counting(host, (40,), 1)
    words = host.allocate(24)
    for halted, taken in ((1, 0), (0, 40)):
        host.write(words, struct.pack("=3Q", halted, 0, 0))
        arguments = (*counting.arguments, words.address + 8, words, None, 40, 1, 1)
        host.launch(counting.kernel.function, (2, 1, 1), (32, 1, 1), arguments)
        assert numbers(host, words, "Q")[:2] == [halted, min(taken + 2, 42) if taken else 0]
    assert counting.counted() == {1}


def test_who_leaves_early_tells_those_behind(host: Host) -> None:
    counting = Counting(host, (40,), 1)
    words, stops = host.allocate(24), host.allocate(16)
    for place in range(16):
        host.write(words, bytes(24))
        host.write(stops, bytes(place) + b"\1" + bytes(15 - place))
        arguments = (*counting.arguments, words.address + 8, words, stops, 40, 1, 1)
        host.launch(counting.kernel.function, (2, 1, 1), (32, 1, 1), arguments)
        assert (numbers(host, words, "I")[0], numbers(host, words, "Q")[1]) == (1, 0)
    assert counting.counted() == {0}


def folded(steps: int, width: int) -> list[int]:
    """What the sequence of `fold` and `mix` gives."""
    low, high = list(range(width)), [0] * width
    for step in range(steps):
        if step % 2 == 0:
            low = [(low[each] * 3 + high[each] + each) % (1 << 64) for each in range(width)]
        else:
            high = [low[(each * 7 + 3) % width] for each in range(width)]
    return low + high


def sequence(host: Host, steps: int, width: int, page: Path | None = None) -> tuple[blocks.BLPExecutor, Memory]:
    fold, mix = (blocks.resumable(COUNT, name, device=host).function for name in ("fold", "mix"))
    state = host.allocate(16 * width)
    host.write(state, struct.pack(f"={width}Q", *range(width)))
    executor = blocks.BLPExecutor(host, page, ahead=7)
    for step in range(steps):
        executor.add(*((mix, width, 4, [state]) if step % 2 else (fold, width, 4, [state, 3])))
    return executor, state


def test_random_stops_leave_a_sequence_bit_exact(host: Host) -> None:
    """None of the kernels may run twice, in part, or before the one before it has ended."""
    chance = random.Random(3)
    executor, state = sequence(host, STEPS, 64)
    stops = cut = 0
    with executor:
        while stops < 1_000 or cut < 50:  # of them, in the middle of a kernel
            host.write(state, struct.pack("=128Q", *range(64), *[0] * 64))
            executor.start()
            while True:
                for _ in range(chance.randrange(0, 1_000) if chance.random() < 0.5 else 0):
                    pass
                left = executor.stop(60)
                stops += 1
                cut += executor.save().next > 0
                executor.resume(physical=chance.choice((None, 1, 2, 5, 64)))
                if not left or (stops >= 1_000 and cut >= 50):
                    break
            assert executor.wait(60)
            assert numbers(host, state, "Q") == folded(STEPS, 64)


def test_a_kernel_behind_one_that_was_stopped_does_not_begin_when_the_stop_is_over_by_then(
    host: Host, page_path: Path
) -> None:
    """Somebody who stops and lets go at once, over and over, without telling the process: it goes on by itself."""
    executor, state = sequence(host, 300, 64, page_path)
    ended = threading.Event()

    def nag() -> None:
        with blocks.Stopper(page_path) as stopper:
            for number in itertools.count():
                stopper.stop()
                time.sleep(0.0001 * (number % 2))  # where processors are busy nobody else runs in between
                stopper.resume()
                time.sleep(0.0001)
                if ended.is_set():
                    break

    thread = threading.Thread(target=nag)
    thread.start()
    try:
        with executor:
            runs, unstopped = 0, -(-300 // 7)
            while runs < 3 or executor.progress().epoch < runs * unstopped + 10:  # until it was stopped some times
                host.write(state, struct.pack("=128Q", *range(64), *[0] * 64))
                executor.run()
                assert numbers(host, state, "Q") == folded(300, 64)
                runs += 1
    finally:
        ended.set()
        thread.join()


@pytest.fixture
def stoppers(page_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    processes = [
        subprocess.Popen([sys.executable, blocks_stopper.__file__, str(page_path), str(seed)], stdout=subprocess.PIPE)
        for seed in range(2)
    ]
    try:
        for each in processes:
            assert each.stdout is not None
            assert each.stdout.readline() == b"stopping\n"
        yield processes
    finally:
        for each in processes:
            each.kill()
            each.wait()


def test_two_other_processes_stop_it_and_one_is_killed_while_it_does(
    host: Host, page_path: Path, stoppers: list[subprocess.Popen[bytes]]
) -> None:
    counting = Counting(host, (6_000,), 500)
    with blocks.BLPExecutor(host, page_path) as executor:
        executor.add(counting.kernel.function, 6_000, 32, counting.arguments)
        runs = 0
        for each in (*stoppers, None):
            stopped = executor.progress().epoch - runs
            while runs < 1 or (each and executor.progress().epoch < runs + stopped + 3):  # until it was stopped again
                executor.run()
                runs += 1
            if each:
                each.send_signal(signal.SIGKILL)
        executor.run()
    assert counting.counted() == {runs + 1}


def test_one_who_dies_while_he_stops_has_let_go(host: Host, page_path: Path) -> None:
    held = subprocess.Popen([sys.executable, blocks_stopper.__file__, str(page_path), "hold"], stdout=subprocess.PIPE)
    assert held.stdout is not None
    assert held.stdout.readline() == b"stopping\n"
    counting = Counting(host, (40,), 1)
    with counting.launch(page=page_path) as running:
        assert not running.wait(30)
        assert not running.page.until_free(0.2)
        held.kill()
        held.wait()
        assert running.page.until_free(30)
        running.resume()
        assert running.wait(30)
    assert counting.counted() == {1}


def test_who_died_while_he_stopped_holds_up_nobody_who_goes_on_by_hand(host: Host, page_path: Path) -> None:
    """Whoever only waits and resumes would come and go without end; nor would a call of the host begin."""
    held = subprocess.Popen([sys.executable, blocks_stopper.__file__, str(page_path), "hold"], stdout=subprocess.PIPE)
    assert held.stdout is not None
    assert held.stdout.readline() == b"stopping\n"
    counting, called = Counting(host, (40,), 1), []
    with blocks.BLPExecutor(host, page_path) as executor:
        executor.call(lambda: called.append(True))
        executor.add(counting.kernel.function, 40, 32, counting.arguments)
        executor.start()
        assert not executor.wait(30)
        assert called == []
        held.kill()
        held.communicate()
        executor.resume()
        assert executor.wait(30)
    assert called == [True]
    assert counting.counted() == {1}


def test_a_call_between_kernels_happens_once_behind_all_before_it(host: Host) -> None:
    counting = Counting(host, (200,), 50_000)
    seen: list[set[int]] = []
    with blocks.BLPExecutor(host) as executor:
        executor.add(counting.kernel.function, 200, 32, counting.arguments)
        executor.call(lambda: seen.append(counting.counted()))
        executor.add(counting.kernel.function, 200, 32, counting.arguments)
        executor.start()
        for _ in range(20):
            executor.stop(30)
            executor.resume()
        assert executor.wait(30)
    assert seen == [{1}]
    assert counting.counted() == {2}


def test_a_stop_from_another_thread_holds_a_run_until_it_is_resumed(host: Host) -> None:
    counting = Counting(host, (400,), LONG)
    with blocks.BLPExecutor(host) as executor:
        executor.add(counting.kernel.function, 400, 32, counting.arguments)
        thread = threading.Thread(target=executor.run)
        thread.start()
        while executor.progress().epoch == 0:
            time.sleep(0.001)
        assert executor.stop(30)
        runs = numbers(host, counting.runs)
        time.sleep(0.05)
        assert numbers(host, counting.runs) == runs
        counting.hurry()
        executor.resume()
        thread.join(60)
        assert not thread.is_alive()
    assert counting.counted() == {1}


def test_begun_anew_a_stopped_kernel_runs_its_blocks_again(host: Host) -> None:
    counting = Counting(host, (400,), LONG)
    with counting.kernel.launch(400, 32, counting.arguments, anew=True) as running:
        while running.stop(30) and not any(numbers(host, counting.runs)):
            running.resume()
        assert running.save() == blocks.Saved(0, 0)
        counting.hurry()
        running.resume()
        assert running.wait(60)
    assert counting.counted() == {1, 2}


def test_nothing_is_changed_under_kernels_that_run(host: Host) -> None:
    counting = Counting(host, (400,), LONG)
    with counting.launch() as running:
        for refused in (running.save, running.start, running.clear):
            with pytest.raises(RunlistError, match="may be running"):
                refused()
        running.stop(30)
        with pytest.raises(UsageError, match="not in this sequence"):
            running.resume(blocks.Saved(0, 401))
        running.clear()


def test_a_block_that_does_not_end_is_told_of(host: Host) -> None:
    counting = Counting(host, (2,), 400_000_000)
    too_long = pytest.raises(RunlistError, match=r"more than 0\.05 s: kernels stop between blocks only")
    with counting.launch() as running, too_long:
        running.wait(0.05)
    assert counting.counted() <= {0, 1}


def test_a_page_tells_who_runs_and_how_far_they_came(host: Host, page_path: Path) -> None:
    counting = Counting(host, (400,), LONG)
    page = blocks.Page(page_path)
    with counting.launch(page=page_path) as running:
        assert page.running()
        running.stop(30)
        assert not page.running()
        (told,) = page.told()
        assert (told.step, told.steps, told.next, told.total) == (0, 1, running.save().next, 400)
    assert page.told() == []
    page.close()


def test_bad_arguments_leave_it_ready_for_good_ones(host: Host) -> None:
    counting = Counting(host, (40,), 1)
    executor, _ = sequence(host, 10, 8)
    with executor:
        executor.add(counting.kernel.function, 40, 32, [counting.runs])
        with pytest.raises(UsageError, match="kernel count has 3 parameters: 1 were given"):
            executor.run()
        executor.clear()
        executor.add(counting.kernel.function, 40, 32, counting.arguments)
        executor.run()
    assert counting.counted() == {1}


def test_an_executor_that_cannot_be_made_keeps_no_place(
    host: Host, page_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(address: int, size: int) -> int:
        raise RunlistError("no mapping")

    with monkeypatch.context() as patched:
        patched.setattr(host, "share", refuse)
        for _ in range(20):
            with pytest.raises(RunlistError, match="no mapping"):
                blocks.BLPExecutor(host, page_path)
    executor = blocks.BLPExecutor(host, page_path)
    executor.close()
    executor.close()
    page = blocks.Page(page_path)
    assert page.told() == []
    page.close()
