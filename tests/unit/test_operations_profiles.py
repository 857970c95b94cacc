"""Profiles of kernels: from profilers' files, from logs, and what is kept of them."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runlist import operations_log
from runlist.cli import main
from runlist.errors import NoPermissionError, RunlistError, UsageError
from runlist.operations import Bound, Profile, read
from runlist.operations.profiles import Learner, Store
from runlist.operations.profiles.profile import LONGEST_NS, MOST_KERNELS, MOST_SMS, wrong
from runlist.operations.profiles.store import IMPORTED, LEARNED
from runlist.operations.record import Operation

COLUMNS = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size",
           "Grid Size", "Device", "CC", "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
           "gpu__time_duration.sum", "launch__registers_per_thread",
           "sm__throughput.avg.pct_of_peak_sustained_elapsed"]  # fmt: skip
UNITS = ["", "", "", "", "", "", "", "", "", "", "", "%", "us", "register/thread", "%"]
LIMITS = ["launch__occupancy_limit_blocks", "launch__occupancy_limit_registers", "launch__occupancy_limit_shared_mem",
          "launch__occupancy_limit_warps", "device__attribute_multiprocessor_count"]  # fmt: skip


def launch(name: str = "gemm", **changes: str) -> dict[str, str]:
    """A line of Nsight Compute: a kernel of 264 blocks of 256 threads with 128 registers, two blocks an SM."""
    usual = ["0", "1", "python", "host", name, "1", "7", "(256, 1, 1)", "(264, 1, 1)", "0", "9.0", "31.5", "1,234.5",
             "128", "87.25"]  # fmt: skip
    words = {"memory": COLUMNS[11], "time": COLUMNS[12], "registers": COLUMNS[13], "compute": COLUMNS[14],
             "block": "Block Size", "grid": "Grid Size", "cc": "CC"}  # fmt: skip
    return dict(zip(COLUMNS, usual, strict=True)) | {words.get(key, key): value for key, value in changes.items()}


def nsight(folder: Path, *launches: dict[str, str], unit: str = "us", before: str = "") -> Path:
    text = io.StringIO()
    columns = list(dict.fromkeys(name for one in launches for name in one)) or COLUMNS
    writer = csv.DictWriter(text, columns, quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerow(dict.fromkeys(columns, "") | {COLUMNS[12]: unit})
    writer.writerows(launches)
    path = folder / "ncu.csv"
    path.write_text(before + text.getvalue())
    return path


# -- Nsight Compute ---------------------------------------------------------------------------------


def test_what_nsight_compute_wrote_is_read(tmp_path: Path) -> None:
    path = nsight(
        tmp_path,
        launch("_Z4gemmPf"),
        launch("copy", memory="92.1", compute="12", grid="(8, 2, 1)", block="(64, 1, 1)", registers="16"),
        launch("small", memory="12.1", compute="59.99", grid="(1, 1, 1)"),
        before="==PROF== Connected to process 7\n==PROF== Disconnected\n",
    )
    assert read(path) == [
        Profile("_Z4gemmPf", Bound.COMPUTE, 132, 1_234_500),
        Profile("copy", Bound.MEMORY, 1, 1_234_500),
        Profile("small", Bound.UNKNOWN, 1, 1_234_500),
    ]


@pytest.mark.parametrize(
    ("changes", "sms"),
    [
        ({"registers": "32"}, 33),  # 8 blocks of 256 threads are 2048
        ({"registers": "33"}, 44),  # as 40: they are given to warps, 256 at a time
        ({"registers": "255"}, 264),
        ({"registers": "0", "block": "(32, 1, 1)"}, 9),  # 32 blocks an SM
        ({"registers": "32", "cc": "7.5"}, 66),
        ({"registers": "32", "cc": "8.6"}, 44),
        ({"block": "(1024, 1, 1)", "registers": "255"}, 264),  # more than there are: as one a time
        (dict(zip(LIMITS, ["32", "2", "3", "8", "132"], strict=True)), 132),
        (dict(zip(LIMITS, ["32", "2", "1", "8", "132"], strict=True)), 132),  # as many as there are
        (dict(zip(LIMITS, ["32", "2", "1", "8", ""], strict=True)), 264),
        ({"grid": "(2147483647, 65535, 65535)"}, MOST_SMS),
    ],
)
def test_a_kernel_needs_as_many_sms_as_its_blocks_fill(tmp_path: Path, changes: dict[str, str], sms: int) -> None:
    assert read(nsight(tmp_path, launch(**changes)))[0].sms == sms


@pytest.mark.parametrize(
    ("compute", "memory", "bound"),
    [
        ("60", "12", Bound.COMPUTE),
        ("59.99", "59.99", Bound.UNKNOWN),
        ("80", "80", Bound.COMPUTE),
        ("80", "80.1", Bound.MEMORY),
        ("12", "60", Bound.MEMORY),
    ],
)
def test_a_kernel_is_bound_by_what_it_uses_much_of(tmp_path: Path, compute: str, memory: str, bound: Bound) -> None:
    assert read(nsight(tmp_path, launch(compute=compute, memory=memory)))[0].bound is bound


@pytest.mark.parametrize(
    ("unit", "ns"), [("ns", 1234), ("nsecond", 1234), ("usecond", 1_234_500), ("ms", 1_234_500_000)]
)
def test_the_second_line_has_the_unit(tmp_path: Path, unit: str, ns: int) -> None:
    assert read(nsight(tmp_path, launch(), unit=unit))[0].duration_ns == ns


def test_of_several_launches_the_one_of_the_middle_duration_counts(tmp_path: Path) -> None:
    times = {"5": "(2, 1, 1)", "900": "(264, 1, 1)", "7": "(4, 1, 1)"}
    path = nsight(tmp_path, *(launch(time=time, grid=grid) for time, grid in times.items()))
    assert read(path) == [Profile("gemm", Bound.COMPUTE, 2, 7000)]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": ""}, "a kernel without a name"),
        ({"name": "void gemm<float>(float*)"}, "use --print-kernel-base mangled"),
        ({"time": "nan"}, "gpu__time_duration.sum 'nan': take a number"),
        ({"time": ""}, "gpu__time_duration.sum '': take a number"),
        ({"time": "-1"}, "take a number"),
        ({"time": "1e300"}, "take a number"),
        ({"compute": "n/a"}, "sm__throughput"),
        ({"memory": "inf"}, "gpu__compute_memory_throughput"),
        ({"registers": "many"}, "launch__registers_per_thread"),
        ({"grid": "264"}, ""),
        ({"grid": "(0, 1, 1)"}, "Grid Size '(0, 1, 1)': take (x, y, z)"),
        ({"grid": "(1; 1; 1)"}, "Grid Size"),
        ({"block": "(2048, 1, 1)"}, "a block has 1024 threads at most"),
        ({"block": "٣"}, "Block Size"),
    ],
)
def test_what_is_wrong_in_a_line_is_named(tmp_path: Path, changes: dict[str, str], said: str) -> None:
    bad = launch(**{"Kernel Name" if key == "name" else key: value for key, value in changes.items()})
    path = nsight(tmp_path, launch(), bad)
    if not said:
        assert read(path)
        return
    with pytest.raises(UsageError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}:4: ")
    assert said in str(caught.value)


def test_missing_and_doubled_columns_and_units_are_named(tmp_path: Path) -> None:
    short = launch()
    del short["launch__registers_per_thread"]
    with pytest.raises(UsageError, match=r"ncu.csv:1: no column launch__registers_per_thread: "):
        read(nsight(tmp_path, short))
    with pytest.raises(UsageError, match=r"ncu.csv:2: the unit of gpu__time_duration.sum is 'fortnight'"):
        read(nsight(tmp_path, launch(), unit="fortnight"))
    path = nsight(tmp_path, launch())
    path.write_text(path.read_text().replace('"CC"', '"Grid Size"'))
    with pytest.raises(UsageError, match="the column Grid Size is there twice"):
        read(path)
    path = nsight(tmp_path, launch())
    path.write_text(path.read_text() + "1,2\n")
    with pytest.raises(UsageError, match=r"ncu.csv:4: 2 columns, not 15"):
        read(path)
    path.write_bytes(path.read_bytes() + b"\xff\n")
    with pytest.raises(UsageError, match=r"ncu.csv:5: not UTF-8 text: save it as such"):
        read(path)


CELLS = st.one_of(
    st.sampled_from(
        ["", "nan", "inf", "-1", "1e400", "(1, 1, 1)", "(256,1,1)", "1,000", "5", "gemm", "a b", "\0", "٣"]
    ),
    st.text(st.characters(exclude_categories=("Cs",)), max_size=12),
    st.floats().map(str),
)


@settings(max_examples=300, deadline=None)
@given(lines=st.lists(st.lists(CELLS, min_size=len(COLUMNS), max_size=len(COLUMNS)), max_size=4), unit=CELLS)
def test_any_cells_are_profiles_that_the_library_takes_or_one_line(lines: list[list[str]], unit: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        rows = [dict(zip(COLUMNS, line, strict=True)) for line in lines]
        path = nsight(Path(name), launch(), *rows, unit=unit)
        said, found = "", []
        try:
            found = read(path)
        except UsageError as error:
            said = str(error)
        assert said.startswith(str(path)) or not said
        assert "\n" not in said
        assert bool(found) != bool(said)
        assert [wrong(one) for one in found] == [""] * len(found)


# -- learning ---------------------------------------------------------------------------------------


def kernel(began: int, done: int, name: str = "gemm", client: int = 0, sms: int = 4, kind: int = 0) -> Operation:
    return Operation(client, kind, 0, sms, began, began, done, name)


def test_a_kernel_took_from_when_it_could_begin() -> None:
    learner = Learner()
    learner.see([kernel(0, 100), kernel(10, 190), kernel(20, 290)])  # one behind the other: 100, 90, 100
    assert learner.profiles() == [Profile("gemm", Bound.UNKNOWN, 4, 100)]
    learner.see([kernel(1000, 1007, "other", client=1), kernel(1001, 9001, "other", client=2)])
    assert [one.name for one in learner.profiles()] == ["gemm"]  # seen too rarely
    learner.see([kernel(20_000, 20_008, "other", client=1, sms=132)])
    assert learner.profiles()[1] == Profile("other", Bound.UNKNOWN, 132, 8)
    assert learner.count("other") == 3


def test_an_operation_that_was_done_before_an_earlier_one_does_not_count_back() -> None:
    learner = Learner()
    learner.see([kernel(0, 100, "long"), kernel(0, 50, "other"), *[kernel(60, 150)] * 1])
    learner.see([kernel(150, 200), kernel(200, 250)])
    assert learner.profiles() == [Profile("gemm", Bound.UNKNOWN, 4, 50)]
    learner.see([kernel(900, 1000, "long"), kernel(900, 950, "other"), kernel(960, 1040), kernel(1040, 1080)])
    assert learner.profiles()[0].duration_ns == 50  # 40, 40, 50, 50, 50


def test_what_says_nothing_of_a_duration_is_left_out() -> None:
    learner = Learner()
    learner.see([kernel(5, 0)] * 9)  # nobody saw it end
    learner.see([kernel(5, 9, "")] * 9)
    learner.see([kernel(5, 9, kind=2)] * 9)
    learner.see([kernel(5, 5 + 2 * LONGEST_NS, "long")] * 9)
    learner.see([kernel(0, 1, "a\nb", client=3)] * 9)
    assert learner.profiles() == []


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.builds(
            Operation, *[st.integers(0, 3)] * 3, *[st.integers(0, (1 << 63) - 1)] * 4,
            st.sampled_from(["gemm", "copy", "", "\x1b[0m", "k~0123"]),
        ),
        max_size=60,
    )
)  # fmt: skip
def test_any_operations_give_profiles_that_the_library_takes(operations: list[Operation]) -> None:
    learner = Learner()
    learner.see(operations)
    assert [wrong(one) for one in learner.profiles()] == [""] * len(learner.profiles())


def test_only_so_many_kernels_are_learned() -> None:
    learner = Learner()
    for number in range(MOST_KERNELS + 50):
        learner.see([kernel(at, at + 9, f"k{number}", client=number) for at in (0, 100, 200)])
    assert len(learner.profiles()) == MOST_KERNELS


# -- what is kept -----------------------------------------------------------------------------------

GEMM = Profile("gemm", Bound.COMPUTE, 132, 21_000)
COPY = Profile("copy", Bound.MEMORY, 8, 300)


def test_what_is_kept_is_there_again_by_kind(tmp_path: Path) -> None:
    store = Store(tmp_path / "profiles")
    assert store.look("NVIDIA H200") == {}
    assert store.gpus() == []
    assert store.put("NVIDIA H200", [GEMM, COPY], IMPORTED) == 2
    assert store.put("Other / GPU", [COPY], LEARNED) == 1
    again = Store(tmp_path / "profiles")
    assert [kept.profile for kept in again.look("NVIDIA H200").values()] == [GEMM, COPY]
    assert again.gpus() == ["NVIDIA H200", "Other / GPU"]
    assert [path.name for path in sorted(store.folder.glob("*.json"))] == ["NVIDIA-H200.json", "Other-GPU.json"]
    assert store.folder.stat().st_mode & 0o077 == 0
    assert again.clear("NVIDIA H200") == 2
    assert again.gpus() == ["Other / GPU"]
    assert again.clear("NVIDIA H200") == 0


def test_what_was_learned_takes_no_imported_ones_place(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put("x", [GEMM], IMPORTED)
    learned = Profile("gemm", Bound.UNKNOWN, 4, 9)
    assert store.put("x", [learned, COPY], LEARNED) == 1
    assert store.look("x")["gemm"].profile == GEMM
    assert store.put("x", [Profile("copy", Bound.UNKNOWN, 1, 1)], LEARNED) == 1
    assert store.look("x")["copy"].profile.sms == 1
    store.put("x", [learned], IMPORTED)
    assert store.look("x")["gemm"].profile == learned


def test_the_oldest_go_where_there_is_no_room(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put("x", [GEMM, COPY], LEARNED)
    store.put("x", [GEMM], LEARNED)
    store.put("x", [Profile(f"k{number}", Bound.UNKNOWN, 1, 1) for number in range(MOST_KERNELS - 1)], LEARNED)
    found = store.look("x")
    assert len(found) == MOST_KERNELS
    assert "gemm" in found
    assert "copy" not in found


@pytest.mark.parametrize("letter", ["k", "\U0001f5a5"])
def test_what_is_kept_can_be_read_again_however_long_the_names_are(tmp_path: Path, letter: str) -> None:
    store = Store(tmp_path)
    store.put("x", [GEMM], IMPORTED)
    names = [letter * 60_000 + str(number) for number in range(400)]
    kept = store.put("x", [Profile(name, Bound.UNKNOWN, 1, 1) for name in names], IMPORTED)
    assert 0 < kept < 400
    assert list(store.look("x")) == names[-kept:]
    assert store.put("x", [GEMM, Profile(letter * 70_000, Bound.UNKNOWN, 1, 1)], LEARNED) == 1
    assert list(store.look("x"))[-1] == "gemm"
    assert "70000 letters" in wrong(Profile(letter * 70_000, Bound.UNKNOWN, 1, 1))


@pytest.mark.parametrize("gpu", ["../../etc/passwd", "", "...", "/", "a" * 500, "\udcff", "x\ny"])
def test_any_name_of_a_gpu_is_a_file_in_the_folder(tmp_path: Path, gpu: str) -> None:
    store = Store(tmp_path)
    store.put(gpu, [GEMM], IMPORTED)
    assert store.path(gpu).parent == tmp_path
    assert store.look(gpu)["gemm"].profile == GEMM
    assert store.gpus() == [gpu]


def test_two_kinds_that_would_have_one_file_are_told_apart(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put("A B", [GEMM], IMPORTED)
    with pytest.raises(UsageError, match="these are of 'A B', not of 'A-B'"):
        store.look("A-B")
    with pytest.raises(UsageError):
        store.put("A-B", [COPY], IMPORTED)
    assert list(store.look("A B")) == ["gemm"]


@pytest.mark.parametrize(
    ("change", "line", "said"),
    [
        ({"bound": "fast"}, 11, "the kernel 'copy' is no profile"),
        ({"sms": -1}, 11, "-1 SMs"),
        ({"sms": 1.5}, 11, "is no profile"),
        ({"sms": True}, 11, "is no profile"),
        ({"duration_ns": 1 << 60}, 11, "ns: take a whole number"),
        ({"source": "heard"}, 11, "is no profile"),
    ],
)
def test_what_is_wrong_in_what_is_kept_is_named(tmp_path: Path, change: dict[str, Any], line: int, said: str) -> None:
    store = Store(tmp_path)
    store.put("x", [GEMM, COPY], IMPORTED)
    content = json.loads(store.path("x").read_text())
    content["kernels"]["copy"] |= change
    store.path("x").write_text(json.dumps(content, indent=1))
    with pytest.raises(UsageError) as caught:
        store.look("x")
    assert str(caught.value).startswith(f"{store.path('x')}:{line}: ")
    assert said in str(caught.value)
    with pytest.raises(UsageError):
        store.put("x", [GEMM], IMPORTED)  # it is not written over


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b"\xff\xfe", b"[" * 100_000, b'{"runlist_profiles": 2, "gpu": "x", "kernels": {}}']
)
def test_other_files_are_none_of_ours_and_stay(tmp_path: Path, content: bytes) -> None:
    store = Store(tmp_path)
    store.path("x").write_bytes(content)
    with pytest.raises(UsageError, match="no file of profiles: remove it"):
        store.look("x")
    with pytest.raises(UsageError):
        store.clear("x")
    assert store.path("x").read_bytes() == content


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NoPermissionError, match="no profiles can be kept there"):
        Store(tmp_path / "file" / "profiles").put("x", [GEMM], IMPORTED)
    with pytest.raises(RunlistError):
        Store(tmp_path / "file").put("x", [GEMM], IMPORTED)


PUTS = """
import sys
from pathlib import Path
from runlist.operations import Bound, Profile
from runlist.operations.profiles import Store
for number in range(20):
    Store(Path(sys.argv[1])).put("x", [Profile(f"{sys.argv[2]}_{number}", Bound.UNKNOWN, 1, 1)], "learned")
"""


def test_several_programs_that_learn_lose_nothing_of_one_another(tmp_path: Path) -> None:
    words = [sys.executable, "-c", PUTS, str(tmp_path)]
    started = [subprocess.Popen([*words, name]) for name in ("a", "b", "c")]
    assert [one.wait(60) for one in started] == [0, 0, 0]
    assert len(Store(tmp_path).look("x")) == 60
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".x")] == []


def test_what_is_no_file_holds_nobody_up(tmp_path: Path) -> None:
    store = Store(tmp_path)
    os.mkfifo(store.path("x"))
    for look in (store.gpus, lambda: store.look("x"), lambda: store.put("x", [GEMM], LEARNED)):
        with pytest.raises(UsageError, match="no file of profiles: remove it"):
            look()


def test_a_program_that_stands_still_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runlist.operations.profiles.store._PATIENCE_S", 0.02)
    store = Store(tmp_path)
    with store._locked(), pytest.raises(RunlistError, match=r"another program has changed it for 0\.02 s"):
        Store(tmp_path).put("x", [GEMM], LEARNED)
    assert store.put("x", [GEMM], LEARNED) == 1


# -- the commands -----------------------------------------------------------------------------------


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "runlist" / "profiles"


def runlist(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["profile", *words])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_import_learn_show_and_clear(state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runlist(capsys, "show")[:2] == (0, "no profiles\n")
    assert runlist(capsys, "import", str(nsight(tmp_path, launch())), "--gpu", "G 1")[1] == "G 1: 1 kernel imported\n"
    log = tmp_path / "log"
    with log.open("w") as file:
        operations_log.write_head(file, os.getpid())
        operations_log.write(file, [kernel(0, 5, "copy"), kernel(7, 12, "copy"), kernel(14, 19, "copy")])
        operations_log.write(file, [kernel(at, at + 9) for at in (100, 200, 300)])  # gemm, which was imported
    assert runlist(capsys, "learn", str(log), "--gpu", "G 1")[1] == "G 1: 1 kernel learned\n"
    code, out, _ = runlist(capsys, "show", "--json")
    assert code == 0
    assert [(one["gpu"], one["name"], one["sms"], one["source"]) for one in json.loads(out)] == [
        ("G 1", "gemm", 132, "imported"), ("G 1", "copy", 4, "learned"),
    ]  # fmt: skip
    shown = runlist(capsys, "show", "--gpu", "G 1")[1].splitlines()
    assert shown[1].split() == ["G", "1", "compute", "132", "1234.5", "imported", "gemm"]
    assert runlist(capsys, "clear")[1] == "G 1: 2 kernels forgotten\n"
    assert list(state.glob("*.json")) == []


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("import", "none.csv", "--gpu", "x"), 2, "none.csv: No such file"),
        (("show", "--gpu", "x"), 4, "no profiles of x: none are kept of any GPU"),
        (("clear", "--gpu", "x"), 4, "no profiles of x: none are kept of any GPU"),
        (("learn", "none.log", "--gpu", "x"), 2, "none.log: No such file or directory: name a log"),
        (("show", "--gpu", ""), 2, "--gpu is empty"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    state: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, said: str
) -> None:
    del state
    found, out, err = runlist(capsys, *words)
    assert (found, out) == (code, "")
    assert said in err
    assert len(err.splitlines()) == 1


def test_without_a_driver_the_kind_must_be_said(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    del state
    monkeypatch.setattr("runlist.operations.device.current", lambda: None)
    code, _, err = runlist(capsys, "import", str(nsight(tmp_path, launch())))
    assert code == 2
    assert "by --gpu KIND" in err
