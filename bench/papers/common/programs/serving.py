"""How a program of the workloads serves requests; a program is a class with the steps of one, and nothing else.

    class Vgg(serving.Program):
        def __init__(self, options: argparse.Namespace) -> None: ...   # loads, warms up, makes a stream of its own

    if __name__ == "__main__":
        serving.main(Vgg, __doc__)                 # and add_options(parser), where it has options of its own

The process says `{"ready": {facts}}` in one line when it is warm. It then reads a line a request from standard input,
`{"id": 7, "due": NS}` (`due` may be null; a list `with` names those of --turn and --hint-us that it is served with,
else all that were given are), and answers each in order with

    {"id": 7, "begun": NS, "phases": {"prepareInput": NS, "copyInput": NS, "infer": NS, "copyOutput": NS},
     "done": NS, "check": DIGEST or null}

Times are CLOCK_MONOTONIC. A request may be told before it is due: its input is prepared at once, and the GPU is used
from then on. With `--requests continuous` the program asks itself, one request after the other. When its input ends it
says `{"end": {"correct": …}}` and exits with 0.

Programs that are threads of one process (`hosted.py`) are made and run in the thread that serves them, each with the
stream priority of its options.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import select
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.papers.common.programs.ahead import Ahead
from bench.papers.common.programs.turns import Turn
from bench.papers.common.programs.waiting import until
from runlist.errors import RunlistError
from runlist.workloads import options as workload_options

FIRST, LAST = 0, -5
"""Priorities of streams as CUDA counts them, from the least urgent to the most that GPUs have."""

_STOPPED_S = 1.0
"""The longest that a request waits for others to leave the GPU."""

Say = Callable[[Mapping[str, Any]], None]
"""Says a line."""


class Program(ABC):
    """One workload. All that it queues goes to one stream of its own, of priority `options.priority`, and it is made in
    the thread that then calls it.
    """

    ways: frozenset[str] = frozenset()
    """Of what it offers: "blocks" (with --blocks its kernels stop between blocks: a BLPExecutor of that page, run in
    `infer`), "reset" (with --reset the same, but anew: its kernels may run twice), "hint" (a `Hinted` one).
    """

    @property
    @abstractmethod
    def stream(self) -> int:
        """Its stream, as a CUstream handle."""

    def facts(self) -> Mapping[str, Any]:
        """What the line `ready` tells of it: model, precision, versions, sizes, seed."""
        return {}

    def prepare(self, request: int) -> None:  # noqa: B027 (there may be nothing to do)
        """Make the input of this request in the host's memory; nothing on the GPU."""

    def copy_input(self) -> None:  # noqa: B027
        """Queue the copy of the input to the GPU."""

    @abstractmethod
    def infer(self) -> None:
        """Queue the work."""

    def copy_output(self) -> None:  # noqa: B027
        """Queue the copy of the output to the host."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for what was queued on the stream."""

    def check(self) -> str | None:
        """A digest of the output of the last request; None where it is not looked at. A runner compares the digests of
        the same request in all its windows where `facts` has `"repeats": true`.
        """
        return None

    def correct(self) -> bool:
        """At the end: whether all the results were right, as far as the program itself can tell."""
        return True


class Hinted(Program):
    """One that, where it offers "hint", can wait on the GPU behind a blocker: `infer` and `copy_output` only queue."""

    @abstractmethod
    def copy_input_aside(self) -> None:
        """Copy the input on another stream, and wait for that: the work waits on its own stream meanwhile, and holds
        the GPU. May be called from another thread than all else.
        """


@dataclass(frozen=True)
class Request:
    """One to be served. `due_ns` is None where it is due when it is read; `ways` has those of the process' own ways
    ("turn", "hint", "hint:LEAD" in µs) that it is to be served in, None: all.
    """

    number: int
    due_ns: int | None
    ways: frozenset[str] | None = None

    def wants(self, way: str) -> bool:
        """Whether it is to be served in this way."""
        return self.ways is None or way in self.ways

    def lead_us(self, usual_us: float) -> float | None:
        """How long ahead it is to take the GPU; None: not at all."""
        for way in self.ways or ():
            if way.startswith("hint:"):
                return float(way.removeprefix("hint:"))
        return usual_us if self.wants("hint") else None


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of every program."""
    add = parser.add_argument
    add("--gpu", type=int, default=0, metavar="INDEX", help="which GPU (default 0)")
    add("--priority", type=int, default=FIRST, metavar="N", help="of its stream, as CUDA counts: 0 to -5, most urgent")
    add("--seed", type=int, default=1, metavar="N", help="of weights and inputs (1)")
    add("--requests", choices=("lines", "continuous"), default="lines", help="from standard input, or without end")
    add("--hint-us", type=workload_options.positive, metavar="US",
        help="take the GPU so long before a request is due, by a kernel that waits on the stream")  # fmt: skip
    add("--turn", type=Path, metavar="FILE", help="use the GPU only in turn with all that name the same file")
    add("--urgent", action="store_true", help="with --turn: before all that do not say this")
    add("--blocks", type=Path, metavar="FILE",
        help="the page of runlist.blocks: who is --urgent stops the others for each request, and these go on from the "
        "block where they stopped (where the program offers it)")  # fmt: skip
    add("--reset", type=Path, metavar="FILE", help="the same, and kernels that were stopped begin anew")


def main(
    make: Callable[[argparse.Namespace], Program],
    description: str | None,
    more: Callable[[argparse.ArgumentParser], None] = lambda _: None,
) -> None:
    """The process of one program."""
    parser = argparse.ArgumentParser(description=description)
    add_options(parser)
    more(parser)
    hosted: Hosted | None = getattr(_hosted, "this", None)
    if hosted is not None:
        options = parser.parse_args(hosted.words)
        _serve_all(make(options), options, hosted.requests, hosted.say)
        return
    options = parser.parse_args()
    say = apart()

    def body() -> None:
        source = continuous(sys.stdin.fileno()) if options.requests == "continuous" else lines(sys.stdin.fileno())
        try:
            _serve_all(make(options), options, source, say)
        except RunlistError as error:
            sys.exit(f"{parser.prog}: {error}")

    workload_options.main(body, parser.prog)


@dataclass(frozen=True)
class Hosted:
    """Where a program that is a thread gets its options and requests from, and whom it answers."""

    words: Sequence[str]
    requests: Iterator[Request]
    say: Say


_hosted = threading.local()


@contextmanager
def hosting(hosted: Hosted) -> Iterator[None]:
    """In this thread, `main` serves these requests instead of standard input's."""
    _hosted.this = hosted
    try:
        yield
    finally:
        del _hosted.this


def _serve_all(program: Program, options: argparse.Namespace, source: Iterator[Request], say: Say) -> None:
    say({"ready": {"pid": os.getpid(), "ways": sorted(program.ways), **program.facts()}})
    serve(program, options, source, say)
    say({"end": {"correct": program.correct()}})


def apart() -> Say:
    """What writes a line of JSON to standard output; what else is printed there goes to standard error from now on."""
    ours = os.dup(1)
    os.dup2(2, 1)
    lock = threading.Lock()

    def say(line: Mapping[str, Any]) -> None:
        data = (json.dumps(line) + "\n").encode()
        with lock:
            while data:
                data = data[os.write(ours, data) :]

    return say


def lines(descriptor: int) -> Iterator[Request]:
    """The requests that come in over a descriptor, until it ends."""
    rest = b""
    while more := os.read(descriptor, 1 << 16):
        *whole, rest = (rest + more).split(b"\n")
        for line in whole:
            if line.strip():
                yield request_of(json.loads(line))


def request_of(line: Mapping[str, Any]) -> Request:
    """A line as a request."""
    due, ways = line.get("due"), line.get("with")
    return Request(int(line["id"]), None if due is None else int(due), None if ways is None else frozenset(ways))


def continuous(descriptor: int) -> Iterator[Request]:
    """One after the other, until a descriptor ends."""
    number = 0
    while not select.select([descriptor], [], [], 0)[0] or os.read(descriptor, 1 << 16):
        yield Request(number, None)
        number += 1


def serve(
    program: Program,
    options: argparse.Namespace,
    requests: Iterator[Request],
    say: Say,
) -> None:
    """Serve all of them, in the thread that made the program."""
    page = options.blocks or options.reset
    stopper = _stopper(page) if options.urgent and page is not None else None
    own_turn = None if options.turn is None else Turn(options.turn, urgent=options.urgent)
    behind_a_blocker = None
    if options.hint_us is not None and "hint" in program.ways and isinstance(program, Hinted):
        behind_a_blocker = partial(_behind_a_blocker, program, Ahead(program.stream))
    gc.collect()
    gc.freeze()  # a collection of all that was loaded would show as a slow request
    for request in requests:
        turn: AbstractContextManager[object] = own_turn if own_turn and request.wants("turn") else nullcontext()
        asked = time.monotonic_ns()
        program.prepare(request.number)
        prepared = time.monotonic_ns()
        lead_us = request.lead_us(options.hint_us) if behind_a_blocker is not None else None
        if behind_a_blocker is not None and lead_us is not None and request.due_ns is not None:
            with turn:
                phases, begun = behind_a_blocker(request.due_ns, lead_us, prepared)
        else:
            until(request.due_ns or 0)
            due = time.monotonic_ns()  # to wait for a turn is part of the request
            with turn, nullcontext() if stopper is None else stopper.stopped(_STOPPED_S):
                phases, begun = _in_steps(program), due
        phases = {"prepareInput": prepared - asked, **phases}
        done = time.monotonic_ns()
        say({"id": request.number, "begun": begun, "phases": phases, "done": done, "check": program.check()})


def _stopper(page: Path) -> Any:
    from runlist.blocks import Stopper  # only here: programs that are not urgent have it from what makes their kernels

    return Stopper(page)


def _in_steps(program: Program) -> dict[str, int]:
    """The GPU's part of a request, each step waited for; the lengths in ns."""
    phases: dict[str, int] = {}
    for name, step in (
        ("copyInput", program.copy_input),
        ("infer", program.infer),
        ("copyOutput", program.copy_output),
    ):
        began = time.monotonic_ns()
        step()
        program.synchronize()
        phases[name] = time.monotonic_ns() - began
    return phases


def _behind_a_blocker(
    program: Hinted, ahead: Ahead, due_ns: int, lead_us: float, asked_ns: int
) -> tuple[dict[str, int], int]:
    """The same, the work queued behind a kernel that holds the GPU until the input is there; that is copied when the
    request is due. `infer` has the copy of the output, too.
    """
    ahead.begin(due_ns, lead_us, program.copy_input_aside)
    program.infer()
    program.copy_output()
    released = ahead.release()
    program.synchronize()
    begun = max(due_ns, asked_ns)
    return {"copyInput": released - begun, "infer": time.monotonic_ns() - released, "copyOutput": 0}, begun
