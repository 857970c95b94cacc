"""Programs that look for functions, fork and free in ways that few do, and a driver that answers as few do."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from runlist.daemon.requests.messages import Kind
from tests.fixtures.daemon import short_path
from tests.fixtures.ear import CloseHere, Ear
from tests.native.guests import OPTIONS, SHARED, SOURCES, GiB, Guests, MiB, compile_c
from tests.native.regions import Region

__all__ = ["short_path"]

LIMIT = 6 * GiB

# -- look-ups --------------------------------------------------------------------------------------


def test_what_comes_next_after_a_library_that_was_opened(guests: Guests) -> None:
    bare = guests.lines("hostile", "next", env=guests.environment())
    total = bare[-1].split()[1]
    env = guests.environment(guests.region(LIMIT))
    assert guests.lines("hostile", "next", env=env) == [line.replace(total, str(LIMIT)) for line in bare]


def test_a_program_has_no_function_of_a_library_that_is_not_there(guests: Guests) -> None:
    assert guests.same("hostile", "itself").out == "0 1\n"


def test_namespaces_without_cuda(guests: Guests) -> None:
    """More than there are rows for, of a library that is found by its caller's folder only."""
    guests.path("below/libleaf.so")
    done = guests.same("hostile", "spaces", "libleaf.so")
    assert (done.lines, done.err) == (["opened", "1"] * 8, "")


def test_a_library_that_does_not_begin_at_address_0(guests: Guests) -> None:
    """As prelink made them. One of the two does not get the address that it was made for."""
    high = guests.new_path()
    done = compile_c([*OPTIONS, *SHARED, "-Wl,-Ttext-segment=0x40000000", str(SOURCES / "leaf.c"), "-o", str(high)])
    if done.code != 0:
        pytest.skip(done.err.strip().splitlines()[-1])
    assert guests.same("hostile", "spaces", high).lines == ["opened", "1"] * 8


def test_a_child_of_fork_while_the_dynamic_linker_is_busy(guests: Guests) -> None:
    assert guests.same("hostile", "forks").out == "1 0\n"


# -- what is told ----------------------------------------------------------------------------------


def test_a_client_is_told_of_as_it_is_made_and_as_it_first_computes(guests: Guests, short_path: Path) -> None:
    """By the second one the daemon knows that there is something to look at."""
    preload = f"{guests.library}:{guests.path('driver.so')}"
    with Ear(short_path / "messages.sock") as ear:
        env = guests.environment(guests.region(), preload) | {"RUNLIST_MESSAGES": str(ear.path)}
        with guests.started("caller", env=env) as process:
            caller = Caller(process, guests.region())
            clients = [caller.alloc(0, 0, 0, CLIENT).object for _ in range(2)]
            for client in (clients[0], clients[0], clients[1]):
                caller.alloc(client, client, 1, DEVICE)
                caller.alloc(client, 1, 2, 0xA06C)  # a channel group
                for number, kind in enumerate((0xCBC0, 0xCBC0, 0xC8B5)):
                    caller.alloc(client, 2, 3 + number, kind)
        heard = []
        while len(heard) < 4:
            told = ear.next().message
            heard += [told.nanoseconds] if told.kind is Kind.JOIN else []
            CloseHere().discard(told.descriptors)
        assert heard == [*clients, *clients]
        assert ear.heard.empty()


# -- what is kept ----------------------------------------------------------------------------------


def test_managed_memory_that_comes_and_goes_leaves_nothing_behind(guests: Guests) -> None:
    guests.same("hostile", "grows")


CLIENT, DEVICE, MEMORY = 0x41, 0x80, 0x40


class Answer(NamedTuple):
    """Of the driver: RM's status, the object, and the bytes that it then holds."""

    status: int
    object: int
    held: int


class Caller:
    """A program that asks RM for what it is told to, and the region that the library counts in."""

    def __init__(self, process: subprocess.Popen[str], region: Region) -> None:
        self._process = process
        self._region = region

    def ask(self, *words: object) -> Answer:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(*words, file=self._process.stdin, flush=True)
        status, made, held = self._process.stdout.readline().split()
        return Answer(int(status, 16), int(made, 16), int(held))

    def alloc(self, client: int, parent: int, handle: int, kind: int, size: int = 0) -> Answer:
        return self.ask("alloc", f"{client:x} {parent:x} {handle:x} {kind:x} {size}")

    def free(self, client: int, handle: int) -> Answer:
        return self.ask("free", f"{client:x} {handle:x}")

    def lose(self, client: int, handle: int) -> Answer:
        """The driver frees it, and the library does not see why."""
        return self.ask("lose", f"{client:x} {handle:x}")

    def counted(self) -> int:
        """What the library holds for held, on the GPU that never said its name."""
        assert all(use.asking == 0 for use in self._region.uses().values())
        return self._region.used()


@pytest.fixture
def caller(guests: Guests) -> Iterator[Caller]:
    region = guests.region(48 * MiB)
    preload = f"{guests.library}:{guests.path('driver.so')}"
    with guests.started("caller", env=guests.environment(region, preload)) as process:
        yield Caller(process, region)


def test_what_was_freed_unseen_is_not_counted_for_ever(caller: Caller) -> None:
    """Its handle belongs to something else by then: with it, what is counted is right again."""
    client = caller.alloc(0, 0, 0, CLIENT).object
    caller.alloc(client, client, 1, DEVICE)
    assert caller.alloc(client, 1, 2, MEMORY, 40 * MiB).held == 40 * MiB
    caller.lose(client, 2)
    assert caller.alloc(client, 1, 2, MEMORY, 1).held == 2 * MiB == caller.counted()
    assert caller.free(client, 2).held == 0 == caller.counted()


def test_what_is_counted_is_what_the_driver_holds(caller: Caller) -> None:
    """Whatever is made, refused, and freed: one by one, with what it is below, and twice."""
    numbers = random.Random(5)
    clients = [caller.alloc(0, 0, 0, CLIENT).object for _ in range(2)]
    held = 0
    for _ in range(400):
        client, device = numbers.choice(clients), numbers.randint(1, 2)
        match numbers.randint(0, 9):
            case 0:
                held = caller.alloc(client, client, device, DEVICE).held
            case 1 if numbers.random() < 0.3:
                held = caller.free(client, device).held
            case 2 if numbers.random() < 0.1:
                held = caller.free(client, client).held
                clients[clients.index(client)] = caller.alloc(0, 0, 0, CLIENT).object
            case 3 | 4:
                held = caller.free(client, numbers.randint(10, 30)).held
            case _:
                size = numbers.randint(1, 12 * MiB)
                held = caller.alloc(client, device, numbers.randint(10, 30), MEMORY, size).held
        assert held <= 48 * MiB
    assert held == caller.counted() > 0
    for client in clients:
        held = caller.free(client, client).held
    assert held == 0 == caller.counted()


ASKS = """
import ctypes, sys
cuda, address, pitch = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64(), ctypes.c_size_t()
where, size, nothing = ctypes.byref(address), lambda mib: ctypes.c_size_t(mib << 20), ctypes.c_void_p()
arguments = {
    "cuMemAlloc_v2": lambda mib: (where, size(mib)),
    "cuMemAllocPitch_v2": lambda mib: (where, ctypes.byref(pitch), size(1), ctypes.c_size_t(mib), 4),
    "cuMemAllocAsync": lambda mib: (where, size(mib), nothing),
    "cuMemAllocFromPoolAsync": lambda mib: (where, size(mib), nothing, nothing),
    "cuCtxSynchronize": lambda mib: (),
}[sys.argv[1]]
assert cuda.cuInit(0) == 0
for mib in sys.argv[2:]:
    print(getattr(cuda, sys.argv[1])(*arguments(int(mib))))
"""


@pytest.mark.parametrize(
    ("function", "sizes", "results", "refusals"),
    [
        pytest.param("cuMemAlloc_v2", (16, 1000, 16), (0, 2, 0), 1, id="asked again"),
        pytest.param("cuMemAlloc_v2", (1000, 1000), (2, 2), 2, id="two by the program"),
        pytest.param("cuMemAllocPitch_v2", (16,), (0,), 0, id="had in another way"),
        pytest.param("cuMemAllocPitch_v2", (1000,), (2,), 1, id="not had in another way"),
        pytest.param("cuMemAllocAsync", (1000, 16), (2, 0), 1, id="by another function"),
        pytest.param("cuMemAllocFromPoolAsync", (1000, 16), (2, 0), 1, id="by two other functions"),
        pytest.param("cuCtxSynchronize", (0,), (0,), 2, id="for nothing that the program asked for"),
    ],
)
def test_a_refusal_is_one_however_often_the_driver_asks(
    guests: Guests, function: str, sizes: tuple[int, ...], results: tuple[int, ...], refusals: int
) -> None:
    region = guests.region(48 * MiB)
    folder = str(guests.path("insistent/libcuda.so.1").parent)
    preload = f"{guests.library}:{guests.path('driver.so')}"
    env = guests.environment(region, preload, LD_LIBRARY_PATH=folder)
    assert guests.lines(sys.executable, "-c", ASKS, function, *sizes, env=env) == [str(result) for result in results]
    assert region.refusals() == refusals


@pytest.mark.parametrize("form", ["grown", "packed"])
@pytest.mark.parametrize("strict", [True, False])
def test_memory_in_a_form_that_is_not_known(guests: Guests, form: str, strict: bool) -> None:
    """Refused where the limits must hold, else said and not counted. What is no memory passes in either case."""
    region = guests.region(48 * MiB, strict=strict)
    preload = f"{guests.library}:{guests.path('driver.so')}"
    words = {"RUNLIST_STRICT": str(int(strict))}
    with guests.started("caller", env=guests.environment(region, preload, **words), stderr=subprocess.PIPE) as process:
        one = Caller(process, region)
        client = one.alloc(0, 0, 0, CLIENT).object
        assert one.ask(form, f"{client:x} {client:x} 1 {DEVICE:x} 0").status == 0
        answer = one.ask(form, f"{client:x} 1 2 {MEMORY:x} {4 * MiB}")
        assert (answer.status, answer.held) == ((0x51, 0) if strict else (0, 4 * MiB))
        assert one.counted() == 0
        assert one.alloc(client, 1, 3, MEMORY, 2 * MiB).status == 0
        assert one.counted() == 2 * MiB
        process.kill()
        assert process.stderr is not None
        (said,) = process.stderr.read().splitlines()
    assert ("refused" if strict else "not counted") in said
