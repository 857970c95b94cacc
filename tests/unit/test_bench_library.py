"""The benchmarks of the library: their programs compile, and their arithmetic is right."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.benchmarks import accounted, hook_cost, launch_cost, process_cap, quota_kills, quota_race, start_cost
from bench.harness import compiled, costs, framework_limit, library, memory_watch
from bench.harness.child import Child
from bench.harness.figures import Figure, with_details
from bench.harness.ledger import PROGRAMS, Ledger
from bench.programs.memory_steps import CONTEXT, ON_THE_CARD, STEPS
from runlist.planes.process import library as native
from runlist.planes.process.region import create
from runlist.protocol import environment_autogen as names

PROGRAM_SOURCES = sorted(path.stem for path in compiled.SOURCES.glob("*.c") if path.stem != "runtime")
PRELOADED_SOURCES = {"behind", "nothing"}


@pytest.fixture
def a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Something in the library's place, in a build directory that the environment names."""
    path = tmp_path / "librunlist.so"
    path.touch()
    monkeypatch.setenv(names.NATIVE_BUILD, str(tmp_path))
    return path


def test_a_build_directory_can_take_the_place_of_an_installation(
    a_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert native.library() == a_library
    monkeypatch.setenv(names.NATIVE_BUILD, str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match="build it there, or unset RUNLIST_NATIVE_BUILD"):
        native.library()


def test_an_environment_has_only_what_it_was_given(a_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LD_PRELOAD", "RUNLIST_REGION", "RUNLIST_CAP", "CUDA_DEVICE_MEMORY_LIMIT_3", "CUDA_DEVICE_SM_LIMIT"):
        monkeypatch.setenv(name, "inherited")
    monkeypatch.setenv("RUNLIST_DEVICE", "emulated")
    limited = library.environment(RUNLIST_MEMORY=5)
    assert (limited["LD_PRELOAD"], limited["RUNLIST_MEMORY"]) == (str(a_library), "5")
    assert limited["RUNLIST_DEVICE"] == "emulated"
    assert "inherited" not in limited.values()
    assert not {"LD_PRELOAD", "RUNLIST_MEMORY", "RUNLIST_STRICT"} & library.without().keys()


def test_programs_take_turns_in_alternating_order() -> None:
    order: list[Mapping[str, str]] = []

    def once(environment: Mapping[str, str]) -> int:
        order.append(environment)
        return len(order)

    setups: dict[str, dict[str, str]] = {"a": {"is": "a"}, "b": {"is": "b"}}
    assert costs.taking_turns(setups, 3, once) == {"a": [1, 4, 5], "b": [2, 3, 6]}
    assert "".join(each["is"] for each in order) == "abbaab"


def test_readings_are_grouped_by_their_words() -> None:
    assert compiled.readings("idle dlsym 1.5\nbusy dlsym 9\nidle dlsym 2\n") == {
        "idle dlsym": [1.5, 2.0],
        "busy dlsym": [9.0],
    }


def test_what_is_added_is_between_medians_of_medians() -> None:
    runs = {
        library.WITHOUT: [{"call": [10.0, 10.0, 900.0]}, {"call": [12.0]}, {"call": [11.0]}],
        library.LIMITED: [{"call": [15.0]}, {"call": [14.0]}, {"call": [500.0]}],
    }
    them = costs.Costs(runs)
    assert them.added(library.LIMITED, "call") == 4.0
    assert them.details() == {"call": {library.WITHOUT: [10.0, 12.0, 11.0], library.LIMITED: [15.0, 14.0, 500.0]}}


def test_a_difference_within_processes_is_not_moved_by_a_slow_process() -> None:
    slow_and_fast = [{"call": [900.0], "base": [890.0]}, {"call": [14.0], "base": [10.0]},
                     {"call": [25.0], "base": [20.0]}]  # fmt: skip
    assert costs.Costs({library.LIMITED: slow_and_fast}).within(library.LIMITED, "call", "base") == 5.0


def test_a_launch_that_does_not_meet_the_library_is_no_measurement() -> None:
    readings = {"hooked linked": [1.0], "hooked dlsym": [0.0], "hooked cuGetProcAddress": [0.0]}
    launch_cost.check(library.WITHOUT, readings)
    launch_cost.check(library.PRELOADED, readings)
    with pytest.raises(RuntimeError, match="not at work for a launch found by: dlsym, cuGetProcAddress"):
        launch_cost.check(library.LIMITED, readings)


def test_hooks_are_measured_over_a_driver_that_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_cost, "PROCESSES", 1)
    monkeypatch.setattr(hook_cost, "ROUNDS", 2)
    figures = hook_cost.measure()
    assert [figure.unit for figure in figures] == ["ns"] * len(hook_cost.CALLS)
    assert figures[0].details["CPU ns of each process"]["hooked"] == {library.WITHOUT: [0.0], library.LIMITED: [1.0]}


def test_details_go_with_the_first_figure() -> None:
    first, second = with_details([Figure("a", 1), Figure("b", 2)], {"runs": 3})
    assert (first.details, second.details) == ({"runs": 3}, {})
    assert with_details([], {"runs": 3}) == []


@pytest.mark.parametrize("name", PROGRAM_SOURCES)
def test_the_programs_compile_without_a_warning(name: str, tmp_path: Path) -> None:
    kind = ["-shared", "-fPIC"] if name in PRELOADED_SOURCES else ["-rdynamic"]
    words = ["cc", "-Wall", "-Wextra", "-Werror", "-O2", *kind, compiled.SOURCES / f"{name}.c", "-o", tmp_path / name]
    subprocess.run([*words, "-ldl"], check=True)


def shared(source: str, path: Path, *options: str) -> Path:
    """A shared library of a few lines of C."""
    code = path.with_suffix(".c")
    code.write_text(source)
    subprocess.run(["cc", "-shared", "-fPIC", *options, code, "-o", path, "-ldl"], check=True)
    return path


@pytest.mark.parametrize("style", ["gnu", "sysv", "both"])
def test_a_library_s_own_function_is_found_past_one_that_is_preloaded(style: str, tmp_path: Path) -> None:
    own = shared("int answer(void) { return 1; } int absent(void);", tmp_path / "own.so", f"-Wl,--hash-style={style}")
    between = shared("int answer(void) { return 2; }", tmp_path / "between.so")
    source, program = tmp_path / "ask.c", tmp_path / "ask"
    source.write_text(
        f"""
        #define _GNU_SOURCE
        #include "{compiled.SOURCES}/elf.h"
        int main(void) {{
            void* library = dlopen("{own}", RTLD_NOW | RTLD_GLOBAL);
            int (*found)(void), (*itself)(void);
            *(void**)&found = dlsym(RTLD_DEFAULT, "answer");
            *(void**)&itself = own_symbol(library, "answer");
            return found() != 2 || itself() != 1 || own_symbol(library, "absent") || own_symbol(library, "malloc");
        }}
        """
    )
    subprocess.run(["cc", source, "-o", program, "-ldl"], check=True)
    subprocess.run([program], check=True, env={"LD_PRELOAD": str(between)})


DRIVER = """
#include <sys/ioctl.h>
static int request(void) { int argument; ioctl(-1, 1, &argument); return 0; }
int cuInit(unsigned flags) { (void)flags; return request(); }
int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return 0; }
int cuDevicePrimaryCtxRetain(void** context, int device) { *context = 0; (void)device; return request(); }
int cuCtxSetCurrent(void* context) { (void)context; return 0; }
"""
BETWEEN = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <unistd.h>
void rl_segment_begin(void) {}
__attribute__((constructor)) static void set_up(void) { usleep(30000); }
int ioctl(int file, unsigned long request, ...) {
    int (*next)(int, unsigned long, ...) = dlsym(RTLD_NEXT, "ioctl");
    va_list arguments;
    va_start(arguments, request);
    void *argument = va_arg(arguments, void*), *own = &next;
    va_end(arguments);
    usleep(20000);
    next(file, 2, own);
    return PASSES ? next(file, request, argument) : 0;
}
"""


def starter(folder: Path, passes: int) -> tuple[list[str], dict[str, str]]:
    """The program `start` with a driver that makes two requests, and a library that takes 20 ms with each."""
    shared(DRIVER, folder / "libcuda.so.1")
    between = shared(BETWEEN, folder / "between.so", f"-DPASSES={passes}")
    return ["0"], {"LD_LIBRARY_PATH": str(folder), "LD_PRELOAD": str(between)}


def test_what_a_library_takes_at_the_start_is_told_apart(tmp_path: Path) -> None:
    words, environment = starter(tmp_path, passes=1)
    with compiled.built("start", "behind") as program:
        alone = start_cost.started(program, 1, {"LD_LIBRARY_PATH": str(tmp_path)})
        environment["LD_PRELOAD"] += f":{program.with_name('behind.so')}"
        said = compiled.run([program, *words], environment)
    between = start_cost.Times(*map(float, said.split()))
    assert [each.own for each in alone] == [0]
    assert between.constructor >= 30
    assert 40 <= between.door <= between.context


@pytest.mark.parametrize(("passes", "preloaded", "why"), [(0, True, "did not pass on: 2"), (1, False, "is not there")])
def test_a_library_that_is_not_between_is_told(passes: int, preloaded: bool, why: str, tmp_path: Path) -> None:
    words, environment = starter(tmp_path, passes)
    with compiled.built("start", "behind") as program:
        behind = str(program.with_name("behind.so"))
        environment["LD_PRELOAD"] = f"{environment['LD_PRELOAD']}:{behind}" if preloaded else behind
        with pytest.raises(RuntimeError, match=why):
            compiled.run([program, *words], environment)
        with pytest.raises(RuntimeError, match=why):
            start_cost.started(program, 2, environment)


def test_the_ledger_is_laid_out_as_the_program_has_it(tmp_path: Path) -> None:
    source, program = tmp_path / "layout.c", tmp_path / "layout"
    source.write_text(
        f"""
        #define main race
        #include "{compiled.SOURCES}/race.c"
        #undef main
        int main(int count, char** words) {{
            ledger = mmap(NULL, sizeof *ledger, PROT_READ | PROT_WRITE, MAP_SHARED, open(words[count - 1], O_RDWR), 0);
            ledger->largest = 5 * (ledger->go + ledger->stop);
            struct program last = {{.ready = 1, .taken = 2, .refused = 3, .launches = 4, .unexpected = 5}};
            ledger->program[PROGRAMS - 1] = last;
            return sizeof *ledger != {64 * (1 + PROGRAMS)};
        }}
        """
    )
    subprocess.run(["cc", source, "-o", program, "-ldl"], check=True)
    with Ledger(tmp_path / "ledger") as ledger:
        ledger.go()
        ledger.stop()
        subprocess.run([program, ledger.path], check=True)
        assert ledger.largest == 10
        assert ledger.counts(PROGRAMS - 1) == (1, 2, 3, 4, 5)
        ledger.forget(PROGRAMS - 1)
        assert ledger.counts(PROGRAMS - 1) == (0, 0, 0, 0, 0)


def test_a_program_that_does_not_compile_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad.c").write_text("int main(void) { return nothing; }\n")
    monkeypatch.setattr(compiled, "SOURCES", tmp_path)
    with pytest.raises(RuntimeError, match=r"^bad\.c does not compile: "), compiled.built("bad"):
        pytest.fail("not reached")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="no C compiler here"), compiled.built("bad"):
        pytest.fail("not reached")


def test_a_program_that_fails_is_told_by_its_last_words() -> None:
    with pytest.raises(RuntimeError, match=r": cuInit: 100$"):
        compiled.run(["sh", "-c", "echo first >&2; echo cuInit: 100 >&2; exit 1"], {"PATH": "/bin:/usr/bin"})


def child(body: str) -> Child:
    return Child([sys.executable, "-c", f"from bench.harness.child import serve\n{body}"], library.without())


def test_a_child_answers_line_by_line() -> None:
    with child("serve(lambda line: {'said': line})") as one:
        assert one.ask_json("a b") == {"said": "a b"}
        assert one.ask_json("c") == {"said": "c"}
        assert one.end() == 0


def test_what_a_child_raises_is_told_and_it_goes_on() -> None:
    with child("serve(lambda line: {'half': int(line) // 2})") as one:
        with pytest.raises(RuntimeError, match="four: ValueError: invalid literal"):
            one.ask_json("four")
        assert one.ask_json("4") == {"half": 2}


def test_a_child_that_ends_is_told_by_its_last_words() -> None:
    with child("raise SystemExit('2 GPUs are needed')") as one, pytest.raises(RuntimeError, match="2 GPUs are needed"):
        one.line()


def test_a_child_that_hangs_is_not_waited_for() -> None:
    with Child(["sleep", "60"], library.without()) as one:
        with pytest.raises(RuntimeError, match=r"has not answered for 0\.05 s"):
            one.ask("anything", patience_s=0.05)
        one.kill()


def test_what_a_region_says_is_summed_over_its_gpus(tmp_path: Path) -> None:
    _, region = create(tmp_path, strict=True)
    try:
        assert memory_watch.uses(region) == {}
        watch = object.__new__(memory_watch.MemoryWatch)
        watch._pids, watch._region = frozenset({1, 2}), region
        with pytest.raises(RuntimeError, match="the library is not at work in 2 of 2 processes"):
            watch.check()
    finally:
        region.close()


class FakeLooks(accounted.Looks):
    def __init__(self, told: int, held: int, overhead: int = 0) -> None:
        self.told, self.held, self.overhead = told, held, overhead


@pytest.mark.parametrize(
    ("told", "accounted_for", "part"),
    [(64, 64, 0.0), (64, 63, 0.5), (64, 66, 1.0), (1000, 980, 1.0), (0, 4, 2.0), (-64, -60, 2.0)],
)
def test_two_percent_or_two_mib_is_allowed(told: int, accounted_for: int, part: float) -> None:
    mib = accounted.MIB
    compared = accounted.compared(FakeLooks(7 * mib, 0, 7 * mib), FakeLooks((7 + told) * mib, accounted_for * mib,
                                                                           7 * mib))  # fmt: skip
    assert compared["of what is allowed"] == part
    assert (compared["driver"], compared["accounted"]) == (told, accounted_for)


def test_what_was_taken_and_what_is_left_are_compared_with_what_was_there_before() -> None:
    mib = accounted.MIB
    looks = iter([FakeLooks(71 * mib, 64 * mib), FakeLooks(9 * mib, mib)])
    asked: list[str] = []

    def ask(line: str) -> Mapping[str, Any]:
        asked.append(line)
        return {}

    found = accounted.taken(ask, lambda: next(looks), "again", "cuMemAlloc 64 MiB", FakeLooks(7 * mib, 0))
    assert asked == ["cuMemAlloc 64 MiB", "undo"]
    assert {name: (each["driver"], each["accounted"]) for name, each in found.items()} == {
        "again": (64, 64),
        "again, given back": (2, 1),
    }


def test_the_context_is_not_given_back_and_what_is_not_there_is_told() -> None:
    def ask(line: str) -> Mapping[str, Any]:
        return {} if line == CONTEXT else {"missing": "no such function"}

    before = FakeLooks(0, 0)
    assert accounted.taken(ask, lambda: before, CONTEXT, CONTEXT, before).keys() == {CONTEXT}
    with pytest.raises(accounted.MissingError, match="no such function"):
        accounted.taken(ask, lambda: before, "array", "array", before)


def test_every_way_to_take_memory_begins_with_the_context() -> None:
    assert next(iter(STEPS)) == CONTEXT
    assert STEPS.keys() >= ON_THE_CARD


def test_a_slower_round_does_not_hide_the_others() -> None:
    rounds = [{library.LIMITED: 10.1, library.WITHOUT: 10.0}, {library.LIMITED: 20.2, library.WITHOUT: 20.0},
              {library.LIMITED: 30.0, library.WITHOUT: 10.0}]  # fmt: skip
    assert framework_limit.ratio(rounds) == pytest.approx(1.01)


@pytest.mark.parametrize(("seen", "right"), [(framework_limit.LIMIT, 1.0), (150 << 30, 0.0)])
def test_a_framework_is_to_see_the_limit(seen: int, right: float) -> None:
    facts: dict[str, list[Mapping[str, Any]]] = {
        library.LIMITED: [{"total": framework_limit.LIMIT, "properties": seen, "pool": framework_limit.LIMIT * 3 // 4}],
        library.WITHOUT: [{"total": 150 << 30}],
    }
    shown, pool = framework_limit.in_sight("it", facts)
    assert (shown.value, pool.value) == (right, 0.75)


def test_bytes_over_the_limit_are_never_fewer_than_none() -> None:
    assert (quota_race.over(10, 9), quota_race.over(10, 10), quota_race.over(10, 12)) == (0, 0, 2)


class Process:
    def __init__(self) -> None:
        self.killed = False

    def kill(self) -> None:
        self.killed = True

    def wait(self, timeout: float) -> None:
        if not self.killed:
            raise subprocess.TimeoutExpired("process", timeout)


def test_each_victim_dies_at_its_own_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_kills, "_PATIENCE_S", 0.05)
    processes: list[Any] = [Process() for _ in range(4)]
    victims = [quota_kills.Victim(process, 0.01 * index) for index, process in enumerate(processes)]
    assert quota_kills.count_undead(victims) == 4
    with Ledger(tmp_path / "ledger") as ledger:  # none gets ready: those that wait for it die all the same
        quota_kills.kill_all(victims, ledger)
    assert all(process.killed for process in processes)
    assert quota_kills.count_undead(victims) == 0
    assert all(victim.due is not None for victim in victims)


def test_rates_are_of_equal_windows() -> None:
    assert process_cap.Rates([10.0, 20.0], correct=True).mean == 15.0


def test_times_of_all_runs_go_together() -> None:
    def at(milliseconds: float) -> start_cost.Times:
        return start_cost.Times(milliseconds, 0, 10 * milliseconds, 0, 0)

    runs = start_cost.joined({library.WITHOUT: [[at(1), at(2)], [at(3)]], library.LIMITED: [[at(2), at(4), at(9)]]})
    assert start_cost.columns(runs[library.WITHOUT])["context"] == [10, 20, 30]
    assert (start_cost.added(runs, "main"), start_cost.added(runs, "context")) == (2, 20)
