"""Watching one process with the programs of `trace --why`, the real object, on a kernel in memory."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from runlist.errors import NoPermissionError, NoTargetError, NotSupportedError, RunlistError
from runlist.planes.kernel import bpf, functions, program, rights, watching
from runlist.planes.kernel.watching import Function, Watch
from runlist.planes.process.library import program as built
from runlist.protocol import why_autogen as protocol
from runlist.structure import Structure
from tests.fixtures import bpf_in_memory
from tests.fixtures.bpf_in_memory import Bpf, Link

LIBRARY = Path("/lib/libcuda.so.1")
AT = {"launch": 0x100, "alias": 0x100, "sync": 0x200, "copy": 0x300}
WANTED = [
    Function("launch", 1, argument=5, folds=True),
    Function("alias", 2, folds=True),
    Function("sync", 3),
    Function("absent", 4),
    Function("copy", 6, argument=1),
]


SWITCH = {"prev_comm": 8, "prev_pid": 24, "prev_prio": 28, "prev_state": 32, "next_comm": 40, "next_pid": 56}
WAKEUP = {"comm": 8, "pid": 24, "prio": 28, "target_cpu": 32}
FIELDS = {
    "sched/sched_switch": SWITCH,
    "sched/sched_wakeup": WAKEUP,
    "sched/sched_wakeup_new": WAKEUP,
    "sched/sched_process_fork": {"parent_comm": 8, "parent_pid": 24, "child_comm": 28, "child_pid": 44},
    "exceptions/page_fault_user": {"address": 8, "ip": 16, "error_code": 24},
    "irq/irq_handler_exit": {"irq": 8, "ret": 12},
    "irq/softirq_exit": {"vec": 8},
    "irq_vectors/local_timer_exit": {"vector": 8},
}
"""As Linux 6.8 has them."""


def form(fields: Mapping[str, int]) -> str:
    return "\n".join(f"\tfield:char {field}[16];\toffset:{at};\tsize:16;" for field, at in fields.items())


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bpf]:
    """With all tracepoints that are wanted, numbered from 100 on, and their fields where they are expected."""
    found = Bpf(cpus=bpf.possible_cpus())
    monkeypatch.setattr(bpf, "_libc", found)
    monkeypatch.setattr(watching, "has_the_kernels_pids", lambda: True)
    monkeypatch.setattr(watching, "capable", lambda _: True)
    monkeypatch.setattr(watching, "_release", lambda: (6, 10))
    monkeypatch.setattr(functions, "places", lambda path, wanted: AT)
    monkeypatch.setattr(functions, "is_stepped_over", lambda path, place: place == AT["sync"])
    monkeypatch.setattr(rights, "is_locked_down", lambda: False)
    programs, _ = program.read(built(watching.OBJECT).read_bytes())
    for number, name in enumerate(sorted({each.tracepoint for each in programs if each.kind != "uprobe"}), 100):
        folder = events(tmp_path) / name
        folder.mkdir(parents=True)
        (folder / "id").write_text(f"{number}\n")
        (folder / "format").write_text(form(FIELDS.get(name, {})))
    monkeypatch.setattr(rights, "_TRACING", (str(tmp_path / "nowhere"), str(tmp_path / "tracing")))
    uprobes = tmp_path / "uprobe"
    (uprobes / "format").mkdir(parents=True)
    (uprobes / "type").write_text("9\n")
    (uprobes / "format" / "retprobe").write_text("config:0\n")
    monkeypatch.setattr(bpf, "_UPROBES", uprobes)
    before = len(os.listdir("/proc/self/fd"))
    yield found
    assert len(os.listdir("/proc/self/fd")) == before  # whatever became of it


def events(folder: Path) -> Path:
    return folder / "tracing" / "events"


def links(kernel: Bpf) -> list[Link]:
    return [one for one in kernel.objects.values() if isinstance(one, Link)]


def test_each_program_is_at_its_tracepoint_and_the_process_and_its_threads_are_named(kernel: Bpf) -> None:
    with Watch(os.getpid()) as watch:
        assert watch.missing == []
        settings = Structure(protocol.STRUCTS["SETTINGS"]).unpack(kernel.map("settings").content[struct.pack("<I", 0)])
        assert settings["pid"] == os.getpid()
        threads = {struct.unpack("<I", key)[0] for key in kernel.map("threads").content}
        assert threads == {int(task) for task in os.listdir("/proc/self/task")}
        programs, _ = program.read(built(watching.OBJECT).read_bytes())
        names = sorted({each.tracepoint for each in programs if each.kind != "uprobe"})
        at = {one.program: one.event.config for one in links(kernel) if one.event is not None}
        tracing = [each for each in programs if each.kind != "uprobe"]
        assert at == {each.name[:15]: 100 + names.index(each.tracepoint) for each in tracing}
        kinds = {one.name: (one.kind, one.attach) for one in kernel.all(bpf_in_memory.Program)}
        assert {kinds[each.name[:15]] for each in tracing} == {(5, 0)}
        assert {kinds[each.name[:15]] for each in programs if each.kind == "uprobe"} == {(2, 48)}
        assert watch.fileno() == watch._maps["events"]


def test_launches_are_watched_where_they_begin_and_other_calls_at_both_ends(kernel: Bpf) -> None:
    """Of names of one place the first counts, and what is not there is not watched."""
    with Watch(os.getpid()) as watch:
        before = len(links(kernel))
        watch.watch_functions(LIBRARY, WANTED)
        launches, begin, end = links(kernel)[before:]
        launch = 1 | 5 << protocol.PLACE_SHIFT | protocol.FOLDS
        others = {0x200: 3, 0x300: 6 | 1 << protocol.PLACE_SHIFT}
        pid = os.getpid()
        assert launches == Link("call", path=str(LIBRARY), places={0x100: launch}, at_return=False, pid=pid)
        assert begin == Link("call", path=str(LIBRARY), places=others, at_return=False, pid=pid)
        assert end == Link("come_back", path=str(LIBRARY), places=others, at_return=True, pid=pid)
        assert (watch.functions, watch.stepped) == (3, {3})
        opened = len(os.listdir("/proc/self/fd"))
        watch.let_go_of_launches()
        assert len(os.listdir("/proc/self/fd")) == opened - 1
        watch.let_go_of_launches()


def test_older_kernels_watch_each_function_by_itself(kernel: Bpf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_release", lambda: (6, 9))
    with Watch(os.getpid()) as watch:
        before = len(links(kernel))
        watch.watch_functions(LIBRARY, WANTED)
        found = [
            (one.program, one.event.offset, one.event.config, one.event.pid, one.cookie)
            for one in links(kernel)[before:]
            if one.event is not None
        ]
        me, copy = os.getpid(), 6 | 1 << protocol.PLACE_SHIFT
        assert found == [
            ("call", 0x100, 0, me, 1 | 5 << protocol.PLACE_SHIFT | protocol.FOLDS),
            ("call", 0x200, 0, me, 3),
            ("call", 0x300, 0, me, copy),
            ("come_back", 0x200, 1, me, 3),
            ("come_back", 0x300, 1, me, copy),
        ]


def test_maps_have_the_room_that_the_programs_expect(kernel: Bpf) -> None:
    names = ("settings", "threads", "cores", "interrupts", "stacks", "counters", "events")
    with Watch(os.getpid()):
        made = [kernel.map(name) for name in names]
    sizes = {name: Structure(text).size for name, text in protocol.STRUCTS.items()}
    assert [(one.kind, one.key, one.value, one.entries) for one in made] == [
        (2, 4, sizes["SETTINGS"], 1),
        (1, 4, sizes["THREAD"], 16_384),
        (2, 4, sizes["CORE"], 1024),
        (6, 4, 8, 3),
        (7, 4, 8 * 32, 4096),  # addresses of 8 bytes
        (6, 4, 8, 5),
        (27, 0, 0, 4 << 20),
    ]


def test_a_tracepoint_whose_fields_are_elsewhere_is_refused(kernel: Bpf, tmp_path: Path) -> None:
    """Each field that a program reads, at each tracepoint."""
    for name, fields in watching._FIELDS.items():
        file = events(tmp_path) / name / "format"
        for field in fields:
            file.write_text(form({**FIELDS[name], field: 400}))
            with pytest.raises(NotSupportedError, match=f"the tracepoint {name} of this kernel has other fields"):
                Watch(os.getpid())
        file.write_text(form(FIELDS[name]))


def test_a_function_of_ones_own_is_watched_until_that_is_ended(kernel: Bpf) -> None:
    with Watch(1) as watch:
        opened = len(os.listdir("/proc/self/fd"))
        end = watch.watch_own(LIBRARY, 0x50, at_return=True)
        own = links(kernel)[-1]
        assert own == Link("come_back", path=str(LIBRARY), places={0x50: 0}, at_return=True, pid=os.getpid())
        end()
        assert len(os.listdir("/proc/self/fd")) == opened


def test_what_was_counted_is_added_up_over_all_processors(kernel: Bpf) -> None:
    with Watch(os.getpid()) as watch:
        assert watch.counts() == watching.Counts(0, 0, 0, 0, 0)
        for place in protocol.Counter:
            value = struct.pack("<Q", 10 + place) + struct.pack("<Q", 100) * (kernel.cpus - 1)
            kernel.map("counters").content[struct.pack("<I", place)] = value
        more = 100 * (kernel.cpus - 1)
        assert watch.counts() == watching.Counts(*(10 + place + more for place in range(5)))


def test_a_stack_has_the_addresses_of_the_functions_that_it_is_deep(kernel: Bpf) -> None:
    with Watch(os.getpid()) as watch:
        assert watch.stack(7) == []
        kernel.map("stacks").content[struct.pack("<I", 7)] = struct.pack("<3Q", 5, 6, 7).ljust(8 * 32, b"\0")
        assert watch.stack(7) == [5, 6, 7]


def test_what_is_told_is_taken_as_it_was_written(kernel: Bpf) -> None:
    with Watch(os.getpid()) as watch:
        assert list(watch.take()) == []
        event = Structure(protocol.STRUCTS["EVENT"])
        told = bytes(event.pack(time_ns=5, what=protocol.What.WAKE, tid=9, name=b"a"))
        page = os.sysconf("SC_PAGE_SIZE")
        written = struct.pack("<II", 4, 0) + b"none\0\0\0\0" + struct.pack("<II", len(told), 0) + told
        os.pwrite(watch.fileno(), written, 2 * page)
        os.pwrite(watch.fileno(), struct.pack("<Q", len(written)), page)
        assert list(watch.take()) == [b"none", told]
        assert list(watch.take()) == []


# -- where it cannot be ----------------------------------------------------------------------------


def test_a_tracepoint_that_not_every_processor_has_may_be_missing(kernel: Bpf, tmp_path: Path) -> None:
    for name in ("exceptions/page_fault_user", "irq_vectors/local_timer_exit"):
        (events(tmp_path) / name / "id").unlink()
    with Watch(os.getpid()) as watch:
        assert sorted(watch.missing) == ["exceptions/page_fault_user", "irq_vectors/local_timer_exit"]


def test_a_tracepoint_that_every_kernel_has_may_not(kernel: Bpf, tmp_path: Path) -> None:
    (events(tmp_path) / "sched/sched_switch" / "id").unlink()
    with pytest.raises(NotSupportedError, match=r"no tracepoint sched/sched_switch \(No such file"):
        Watch(os.getpid())


@pytest.mark.parametrize("at", [20, 44, 48])
def test_fields_may_be_where_some_kernel_has_them_and_nowhere_else(kernel: Bpf, tmp_path: Path, at: int) -> None:
    (events(tmp_path) / "sched/sched_process_fork" / "format").write_text(form({"child_pid": at}))
    if at == 48:
        with pytest.raises(NotSupportedError, match="sched_process_fork of this kernel has other fields than known"):
            Watch(os.getpid())
        return
    with Watch(os.getpid()):
        pass
    programs, _ = program.read(built(watching.OBJECT).read_bytes())
    (each,) = (each for each in programs if each.tracepoint == "sched/sched_process_fork")
    made = next(
        one for one in kernel.objects.values() if isinstance(one, bpf_in_memory.Program) and one.name == each.name[:15]
    )
    places = [place for place, name in each.maps.items() if name == "at_sched_process_fork_child_pid"]
    assert places
    assert [struct.unpack_from("<i", made.instructions, place + 4)[0] for place in places] == [at] * len(places)


def refuse(what: str, code: int) -> Callable[[Bpf], None]:
    return lambda kernel: kernel.refuses.update({what: code})


@pytest.mark.parametrize(
    ("prepare", "error", "said"),
    [
        (refuse("map stacks", errno.EPERM), NoPermissionError, "no right to load programs into the kernel"),
        (refuse("map stacks", errno.ENOMEM), NotSupportedError, "the kernel makes no map stacks: Cannot allocate"),
        (refuse("call", errno.EPERM), NoPermissionError, "no right to load programs into the kernel"),
        (refuse("call", errno.EINVAL), NotSupportedError, "refuses the program call: Invalid argument"),
        (refuse("call", errno.EACCES), NotSupportedError, "refuses the program call: Permission denied"),
        (refuse("perf", errno.EINVAL), NotSupportedError, "does not attach .*: Invalid argument; Linux 5.15 or later"),
    ],
)
def test_what_the_kernel_does_not_do_is_said(
    kernel: Bpf, prepare: Callable[[Bpf], None], error: type[RunlistError], said: str
) -> None:
    prepare(kernel)
    with pytest.raises(error, match=said):
        Watch(os.getpid())


@pytest.mark.parametrize(
    ("code", "locked", "error", "said"),
    [
        (errno.ESRCH, False, NoTargetError, "process 1 has ended"),
        (
            errno.EPERM,
            False,
            NotSupportedError,
            "watch calls in /lib/libcuda.so.1: Operation not permitted; Linux 5.15",
        ),
        (errno.EACCES, True, NotSupportedError, "watch calls in /lib/libcuda.so.1: it is locked down"),
        (errno.EPERM, True, NotSupportedError, "watch calls in /lib/libcuda.so.1: it is locked down"),
        (errno.EINVAL, True, NotSupportedError, "watch calls in /lib/libcuda.so.1: Invalid argument; Linux 5.15"),
    ],
)
def test_calls_that_cannot_be_watched_are_said(
    kernel: Bpf, monkeypatch: pytest.MonkeyPatch, code: int, locked: bool, error: type[RunlistError], said: str
) -> None:
    monkeypatch.setattr(rights, "is_locked_down", lambda: locked)
    with Watch(1) as watch:
        kernel.refuses["link call"] = code
        with pytest.raises(error, match=said):
            watch.watch_functions(LIBRARY, WANTED)


def test_a_library_that_is_none_is_said(kernel: Bpf, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*_: object) -> None:
        raise ValueError("it is no library")

    with Watch(1) as watch:
        monkeypatch.setattr(functions, "places", damaged)
        with pytest.raises(NotSupportedError, match=r"/lib/libcuda.so.1 cannot be watched: it is no library"):
            watch.watch_functions(LIBRARY, WANTED)
        monkeypatch.setattr(functions, "places", lambda *_: {})
        before = len(links(kernel))
        watch.watch_functions(LIBRARY, WANTED)
        assert len(links(kernel)) == before


def test_who_may_not_watch_is_told_before_anything_is_loaded(kernel: Bpf, monkeypatch: pytest.MonkeyPatch) -> None:
    for missing in (rights.BPF, rights.PERFMON):
        monkeypatch.setattr(watching, "capable", lambda one, missing=missing: one != missing)
        with pytest.raises(NoPermissionError, match="run this as root, or with CAP_BPF and CAP_PERFMON"):
            Watch(os.getpid())
    monkeypatch.setattr(watching, "has_the_kernels_pids", lambda: False)
    with pytest.raises(NotSupportedError, match="this is in a pid namespace"):
        Watch(os.getpid())
    assert kernel.objects == {}


def test_an_installation_whose_programs_are_missing_or_damaged(
    kernel: Bpf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(watching, "built", lambda name: tmp_path / name)
    with pytest.raises(NotSupportedError, match="No such file"):
        Watch(os.getpid())
    (tmp_path / watching.OBJECT).write_bytes(b"no object")
    with pytest.raises(NotSupportedError, match=r"why.bpf.o of this installation is no good \(it is no object file"):
        Watch(os.getpid())


def test_where_tracepoints_cannot_be_reached_it_is_said(kernel: Bpf, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable() -> int:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(rights, "open_tracing", unreachable)
    with pytest.raises(NotSupportedError, match=r"reached \(Operation not permitted\): mount tracefs"):
        Watch(os.getpid())


def test_the_release_is_read_as_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, numbers in (("6.10.0-1-amd64", (6, 10)), ("5.4", (5, 4)), ("6.9.3", (6, 9))):
        monkeypatch.setattr(os, "uname", lambda text=text: os.uname_result(("Linux", "host", text, "", "x86_64")))
        assert watching._release() == numbers
