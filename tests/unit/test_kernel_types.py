"""Where a kernel has what the kernel plane reads, by types that are made up: of older kernels, and of newer ones."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import pytest

from runlist.planes.kernel import btf, kernel_types

INT, ARRAY, STRUCT, UNION, ENUM, TYPEDEF, FUNC, PROTO, VAR, DATASEC, FLOAT, TAG, ENUM64 = (
    1, 3, 4, 5, 6, 8, 12, 13, 14, 15, 16, 17, 19,
)  # fmt: skip
STRUCTURES = {
    "task_struct": {"comm": 0, "files": 8, "signal": 16},
    "signal_struct": {"live": 4},
    "files_struct": {"fdt": 32},
    "fdtable": {"max_fds": 0, "fd": 8},
    "inode": {"i_rdev": 76, "i_ino": 64, "i_sb": 40},
    "super_block": {"s_dev": 16},
}
SINCE_6_13, BEFORE = {"f_inode": 32, "f_ref": 176}, {"f_count": 56, "f_inode": 168}


class Types:
    """Types as a kernel has them, one of each kind between those that matter."""

    def __init__(self) -> None:
        self.names, self.types, self.count = bytearray(b"\0"), bytearray(), 0

    def name(self, text: str) -> int:
        at = len(self.names)
        self.names += text.encode() + b"\0"
        return at

    def add(self, kind: int, name: int = 0, count: int = 0, rest: bytes = b"", flag: int = 0) -> int:
        self.types += struct.pack("<III", name, flag << 31 | kind << 24 | count, 0) + rest
        self.count += 1
        return self.count

    def fill(self) -> None:
        for kind, one, each in (
            (INT, 4, 0), (ARRAY, 12, 0), (UNION, 0, 12), (ENUM, 0, 8), (TYPEDEF, 0, 0), (PROTO, 0, 8), (VAR, 4, 0),
            (DATASEC, 0, 12), (FLOAT, 0, 0), (TAG, 4, 0), (ENUM64, 0, 12),
        ):  # fmt: skip
            count = 3 if each else 0
            self.add(kind, count=count, rest=bytes(one + each * count))

    def structure(self, name: str, fields: Mapping[str, int], bits: int = 0) -> None:
        """With a size of a bit field in the upper byte of each place, if `bits`."""
        at = {field: self.name(field) for field in fields}
        members = [struct.pack("<III", at[field], 0, bits << 24 | place * 8) for field, place in fields.items()]
        self.add(STRUCT, self.name(name), len(fields), b"".join(members), flag=bool(bits))

    def blob(self) -> bytes:
        """The types somewhere behind the head, and the names behind those."""
        size = len(self.types)
        head = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 8, size, 8 + size, len(self.names))
        return head + bytes(8) + bytes(self.types + self.names)


def types_of(file: Mapping[str, int], *, function: bool = True, without: str = "") -> tuple[bytes, int]:
    """A kernel's types, and the number of the function that is asked for."""
    types = Types()
    types.fill()
    types.add(FUNC, types.name("bpf_lsm_file_open"))
    number = types.add(FUNC, types.name(kernel_types.REFUSE)) if function else 0
    types.structure("other", {"files": 4, "live": 8}, bits=3)
    for name, fields in {**STRUCTURES, "file": file}.items():
        types.fill()
        if name != without:
            types.structure(name, fields, bits=0 if name == "file" else 7)
    types.structure("file", {"f_inode": 4000})  # of a module: the first counts
    types.add(FUNC, types.name(kernel_types.REFUSE + "_other"))
    return types.blob(), number


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / "vmlinux"
    monkeypatch.setattr(btf, "KERNEL", path)
    return path


@pytest.mark.parametrize(("file", "files", "at"), [(SINCE_6_13, 1, 176), (BEFORE, 2, 56)])
def test_places_of_an_older_and_of_a_newer_kernel(kernel: Path, file: Mapping[str, int], files: int, at: int) -> None:
    blob, number = types_of(file)
    kernel.write_bytes(blob)
    found = kernel_types.find()
    assert found.unknown == ""
    assert (found.hook, found.files) == (number, files)
    wanted = {
        f"{of}_{name}": place for of, each in {**STRUCTURES, "file": file}.items() for name, place in each.items()
    }
    del wanted["task_struct_comm"]
    assert found.places == {**wanted, "file_references": at}


def test_a_kernel_without_the_function_has_the_places_all_the_same(kernel: Path) -> None:
    kernel.write_bytes(types_of(SINCE_6_13, function=False)[0])
    found = kernel_types.find()
    assert (found.hook, found.unknown, found.places["file_references"]) == (0, "", 176)


@pytest.mark.parametrize(
    ("file", "without", "missing"),
    [
        (SINCE_6_13, "super_block", "super_block_s_dev"),
        ({"f_inode": 32}, "", "count"),
        ({"f_ref": 8}, "", "file_f_inode"),
    ],
)
def test_where_one_is_missing_none_is_known(kernel: Path, file: Mapping[str, int], without: str, missing: str) -> None:
    blob, number = types_of(file, without=without)
    kernel.write_bytes(blob)
    found = kernel_types.find()
    assert found.unknown == f"its types are others: no {missing}"
    assert (found.hook, found.files, set(found.places.values())) == (number, 0, {0})
    assert "file_references" in found.places


def test_a_kernel_that_tells_nothing_or_nonsense(kernel: Path) -> None:
    assert kernel_types.find().unknown.startswith("the kernel does not tell its types (")
    blob = types_of(SINCE_6_13)[0]
    broken = Types()
    broken.add(20)
    for data, said in (
        (b"", "damaged types"), (b"\0\0" + blob[2:], "no types"), (blob[:200], "damaged types"),
        (broken.blob(), "a type of kind 20"),
    ):  # fmt: skip
        kernel.write_bytes(data)
        found = kernel_types.find()
        assert said in found.unknown
        assert (found.hook, found.files, set(found.places.values())) == (0, 0, {0})
        with pytest.raises(ValueError, match=said):
            btf.read(data, btf.Wanted({}, ()))
