"""The programs of the workloads as they are started: processes that serve requests, here on processor threads."""

from __future__ import annotations

import argparse
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.papers.common.modules import load
from bench.papers.gpreempt.between import Between
from bench.papers.gpreempt.networks import NETWORKS
from bench.papers.gpreempt.programs import weather
from runlist.blocks.page import Page, Stopper
from runlist.errors import NotSupportedError

ROOT = Path(__file__).resolve().parents[2]
ANSWER_S = 100.0


class Served:
    """A program, and what it answers."""

    def __init__(self, name: str, *options: str) -> None:
        command = [sys.executable, "-m", f"bench.papers.gpreempt.programs.{name}", *options]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True, bufsize=1
        )
        self.facts = self.line()["ready"]

    def line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"it ended with {self._process.wait()}"
        return json.loads(line)  # type: ignore[no-any-return]

    def ask(self, number: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": number, "due": None}) + "\n")

    def answer(self, number: int) -> str:
        """The digest of a request."""
        self.ask(number)
        return self.answered(number)

    def answered(self, number: int) -> str:
        line = self.line()
        assert line["id"] == number
        assert line["done"] >= line["begun"]
        assert set(line["phases"]) == {"prepareInput", "copyInput", "infer", "copyOutput"}
        return str(line["check"])

    def silent(self, seconds: float) -> bool:
        """Whether it says nothing for so long."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)  # type: ignore[arg-type]
            return not selector.select(seconds)

    def end(self) -> bool:
        """Whether all its results were right, as it says itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        right = bool(self.line()["end"]["correct"])
        assert self._process.wait(ANSWER_S) == 0
        return right

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


Start = Callable[..., Served]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Served] = []

    def begin(name: str, *options: str) -> Served:
        started.append(Served(name, *options))
        return started[-1]

    yield begin
    for each in started:
        each.kill()


WEATHER = ("--device", "host", "--cells", "32", "--period", "4", "--case", "thermal")


def test_weather_gives_the_same_bits_in_each_process_and_begins_anew(start: Start) -> None:
    one, other = start("weather", *WEATHER), start("weather", *WEATHER)
    assert one.facts["cells"] == [32, 16]
    digests = [one.answer(number) for number in range(6)]
    assert len(set(digests[:4])) == 4
    assert digests[4:] == digests[:2]
    assert [other.answer(number) for number in range(6)] == digests
    assert one.end()
    assert other.end()


def test_weather_that_is_stopped_goes_on_and_is_right(start: Start, page_path: Path) -> None:
    alone = start("weather", *WEATHER)
    stopped = start("weather", *WEATHER, "--blocks", str(page_path))
    assert "blocks" in stopped.facts["ways"]
    expected = [alone.answer(number) for number in range(20)]
    with Stopper(page_path) as stopper:
        stopper.stop()
        assert stopper.until_off(ANSWER_S)
        stopped.ask(0)
        assert stopped.silent(1.0)
        stopper.resume()
        found = [stopped.answered(0)]
        for number in range(1, 20):
            stopped.ask(number)
            time.sleep(0.002)
            with stopper.stopped(ANSWER_S) as off:
                assert off
            found.append(stopped.answered(number))
    assert found == expected
    assert stopped.end()


def test_weather_tells_one_wrong_number() -> None:
    program = weather.Weather(
        argparse.Namespace(
            device="host", cells=32, case="thermal", steps=1, period=4, blocks=None, urgent=False, gpu=0, priority=0
        )
    )

    def request() -> bool:
        program.infer()
        program.copy_output()
        program.synchronize()
        program.check()
        return program.correct()

    assert request()
    state = program._model.state()
    state[0, 9, 9] += 1e-12
    program._device.write(program._model._state, state.tobytes())
    assert not request()


def test_a_program_without_its_gpu_says_so_in_a_line() -> None:
    command = [sys.executable, "-m", "bench.papers.gpreempt.programs.weather", "--gpu", "99"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1, ended.stderr


def _needed(name: str) -> None:
    """Skip where what a network is made of is not installed: wheels of gigabytes."""
    try:
        for module in ("torch", *NETWORKS[name].modules):
            load(module)
    except NotSupportedError as error:
        pytest.skip(str(error))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_a_network_gives_the_same_bits_in_each_process(start: Start, name: str) -> None:
    _needed(name)
    one = start("dnn", name, "--device", "cpu")
    assert one.facts["network"] == name
    assert one.facts["repeats"]
    digests = [one.answer(number) for number in (0, 1, 16, 17)]
    assert digests[0] != digests[1], "the input makes no difference"
    assert digests[2:] == digests[:2]
    assert one.end()
    again = start("dnn", name, "--device", "cpu")
    assert [again.answer(number) for number in (0, 1)] == digests[:2]
    assert again.end()


@pytest.mark.timeout(600)
def test_a_network_that_is_stopped_between_layers_is_right(start: Start, page_path: Path) -> None:
    _needed("distilbert")
    alone = start("dnn", "distilbert", "--device", "cpu")
    expected = [alone.answer(number) for number in range(4)]
    assert alone.end()
    stopped = start("dnn", "distilbert", "--device", "cpu", "--blocks", str(page_path))
    assert stopped.facts["stops"] == "between layers"
    with Stopper(page_path) as stopper:
        stopper.stop()
        stopped.ask(0)
        assert stopped.silent(1.0)
        stopper.resume()
        found = [stopped.answered(0)]
        for number in range(1, 4):
            stopped.ask(number)
            time.sleep(0.01)
            with stopper.stopped(ANSWER_S) as off:
                assert off
            found.append(stopped.answered(number))
    assert found == expected
    assert stopped.end()


@pytest.mark.timeout(600)
def test_a_graph_has_no_layers_to_stop_between(page_path: Path) -> None:
    _needed("distilbert")
    command = [sys.executable, "-m", "bench.papers.gpreempt.programs.dnn", "distilbert", "--device", "cpu", "--graph"]
    ended = subprocess.run(
        [*command, "--blocks", str(page_path)], cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].endswith("leave out --graph")


class Steps:
    """A stream on which each step takes until it is waited for."""

    def __init__(self) -> None:
        self.queued: list[int] = []
        self.ended: list[int] = []
        self.most = 0

    def queue(self, number: int) -> None:
        self.queued.append(number)
        self.most = max(self.most, len(self.queued) - len(self.ended))

    def mark(self) -> Callable[[], None]:
        until = len(self.queued)
        return lambda: self._end(until)

    def synchronize(self) -> None:
        self._end(len(self.queued))

    def _end(self, until: int) -> None:
        self.ended += self.queued[len(self.ended) : until]


def test_steps_are_held_back_while_somebody_asks_and_none_is_lost(page_path: Path) -> None:
    steps, page = Steps(), Page(page_path)
    between = Between(page, steps.mark, steps.synchronize)
    stopper = Stopper(page_path)
    reached, go_on = threading.Event(), threading.Event()

    def work() -> None:
        between.begin()
        for number in range(100):
            if number == 50:
                reached.set()
                go_on.wait()
            between.step()
            steps.queue(number)
        between.end()

    worker = threading.Thread(target=work)
    worker.start()
    reached.wait()
    assert page.running()
    stopper.stop()
    assert not stopper.until_off(0.05), "what is queued counts as running"
    go_on.set()
    assert stopper.until_off(30.0)
    assert steps.ended == list(range(50)), "off the GPU before it has ended"
    time.sleep(0.05)
    assert len(steps.queued) == 50
    stopper.close()
    worker.join()
    assert steps.ended == list(range(100))
    assert steps.most <= 16, "a stop would wait for all of these"
    assert between.stops == 1
    assert not page.running()
    between.close()
    page.close()


def test_work_begins_only_when_nobody_asks(page_path: Path) -> None:
    steps, page = Steps(), Page(page_path)
    between = Between(page, steps.mark, steps.synchronize)
    begun = threading.Event()
    with Stopper(page_path) as stopper:
        stopper.stop()
        worker = threading.Thread(target=lambda: (between.begin(), begun.set()))
        worker.start()
        assert not begun.wait(0.1)
        assert stopper.until_off(30.0)
        stopper.resume()
        assert begun.wait(30.0)
    worker.join()
    assert page.running()
    between.end()
    page.close()
