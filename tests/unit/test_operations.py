"""Rules and profiles of the scheduler of operations, as data."""

from __future__ import annotations

from pathlib import Path

import pytest

from runlist.errors import UsageError
from runlist.operations import ANY, COMPLEMENTS, OPEN, Admission, Bound, Profile, read, rule_of, start

HEAD = "Name,Profile,Memory_footprint,SM_usage,Duration(ns)\n"


def test_a_rule_is_bits() -> None:
    assert Admission(frozenset({(Bound.COMPUTE, Bound.MEMORY)})).bits() == 1 << 5
    assert Admission(frozenset()).bits() == 0
    assert OPEN.bits() == 0x1FF
    both = [(Bound.COMPUTE, Bound.COMPUTE), (Bound.MEMORY, Bound.MEMORY)]
    assert Admission(COMPLEMENTS).bits() == 0x1FF & ~sum(1 << (3 * first + other) for first, other in both)
    mine = Admission(frozenset(), sms=40)
    assert rule_of(mine) is mine


def test_profiles_are_read(tmp_path: Path) -> None:
    path = tmp_path / "profiles.csv"
    path.write_text(
        HEAD + '"gemm<a, b>",1,0,132,21000\n\ncopy,0,5,8.0,300.4\nx,-1,,0,0\ny,memory,0,1e99,1\n'.replace("1e99", "9")
    )
    assert read(path) == [
        Profile("gemm<a, b>", Bound.COMPUTE, 132, 21000), Profile("copy", Bound.MEMORY, 8, 300),
        Profile("x", Bound.UNKNOWN, 0, 0), Profile("y", Bound.MEMORY, 9, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "line", "said"),
    [
        ("", 1, "the columns must be"),
        ("Name,Profile\nx,1\n", 1, "the columns must be"),
        (HEAD + "x,1,0,1,1\nx,1,0,1\n", 3, "4 columns, not 5"),
        (HEAD + "x,fast,0,1,1\n", 2, "Profile 'fast': take 1"),
        (HEAD + "x,1,0,nan,1\n", 2, "SM_usage 'nan': take a number"),
        (HEAD + "x,1,0,1,-5\n", 2, "Duration(ns) '-5': take a number"),
        (HEAD + "x,1,0,1,inf\n", 2, "Duration(ns) 'inf': take a number"),
        (HEAD + f"x,1,0,{ANY + 1},1\n", 2, "take a number"),
        (HEAD + ",1,0,1,1\n", 2, "without a name"),
        (HEAD + "\x1b[31mx,1,0,1,1\n", 2, r"the kernel's name '\x1b[31mx' cannot be printed"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, content: str, line: int, said: str) -> None:
    path = tmp_path / "profiles.csv"
    path.write_text(content)
    with pytest.raises(UsageError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert said in str(caught.value)


@pytest.mark.parametrize("kind", [str, Path])
def test_a_file_of_profiles_may_be_named_as_any_path(tmp_path: Path, kind: type[str | Path]) -> None:
    with pytest.raises(UsageError, match=r"none\.csv: No such file"):
        start(profiles=kind(tmp_path / "none.csv"))


def test_other_files_are_refused_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read(tmp_path / "none")
    with pytest.raises(UsageError, match="Is a directory"):
        read(tmp_path)
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\0" * 9)
    with pytest.raises(UsageError):
        read(binary)


@pytest.mark.parametrize("clients", [0, 17, -1])
def test_so_many_clients_there_can_be(clients: int) -> None:
    with pytest.raises(UsageError, match="there can be 1 to 16"):
        start(clients)
