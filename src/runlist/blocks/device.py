"""What the sequences of kernels need of a GPU, or of what stands for one; and a kernel's arguments as bytes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Protocol

from runlist.blocks.source import RUN_PARAMETERS, Parameter
from runlist.errors import UsageError

Dim = int | Sequence[int]
"""A grid or a block: its size in up to three dimensions, x first."""

Shape = tuple[int, int, int]


class Memory(Protocol):
    """Memory of a device."""

    @property
    def address(self) -> int: ...

    @property
    def size(self) -> int:
        """Bytes."""


class Function(Protocol):
    """A kernel, compiled."""

    @property
    def name(self) -> str: ...


class Module(Protocol):
    """A text of CUDA C++, compiled."""

    def function(self, name: str) -> Function:
        """Raises UsageError for one that is not there."""


class Device(Protocol):
    """Where kernels run; what is launched runs in the order of the launches."""

    name: str

    def compile(self, text: str, label: str = "kernel.cu", options: Sequence[str] = ()) -> Module:
        """Raises RunlistError where it cannot be compiled, with the compiler's words."""

    def allocate(self, size: int) -> Memory:
        """So many bytes, all zero."""

    def write(self, memory: Memory, data: bytes, offset: int = 0) -> None:
        """Copies to the device, behind all that was launched, and waits for it."""

    def read(self, memory: Memory) -> bytes:
        """Copies from the device what all that was launched left there."""

    def share(self, address: int, size: int) -> int:
        """The device's address of memory of this process, which the device sees change from now on."""

    def unshare(self, address: int) -> None:
        """Undoes `share`; nothing that uses it runs any more."""

    def launch(self, function: Function, grid: Shape, block: Shape, arguments: Sequence[Any], shared: int = 0) -> None:
        """Queues a kernel, with `shared` bytes of dynamic shared memory."""

    def synchronize(self, timeout_s: float | None = None) -> bool:
        """Waits until all that was launched has ended; whether it did within so many seconds."""

    def fitting(self, function: Function, block: Shape, shared: int) -> int:
        """How many blocks of the kernel the device has room for at once."""


def shape(given: Dim) -> Shape:
    """Three dimensions, those not given 1. Raises UsageError for what is none."""
    sizes = tuple(given) if isinstance(given, Sequence) else (given,)
    if not 1 <= len(sizes) <= 3 or any(not isinstance(each, int) or each < 1 for each in sizes):
        raise UsageError(f"{given!r} is no grid and no block: give one to three whole numbers above 0")
    return (*sizes, 1, 1)[:3]  # type: ignore[return-value]


def check_room(memory: Memory, size: int, offset: int) -> None:
    """Raises UsageError where so many bytes are not all within memory."""
    if not 0 <= offset <= memory.size - size:
        raise UsageError(f"{size} bytes at {offset} do not fit into {memory.size}")


_TYPES: dict[str, type[Any]] = {
    "bool": ctypes.c_bool, "char": ctypes.c_char, "signed char": ctypes.c_int8, "unsigned char": ctypes.c_uint8,
    "short": ctypes.c_int16, "unsigned short": ctypes.c_uint16, "int": ctypes.c_int32, "unsigned": ctypes.c_uint32,
    "unsigned int": ctypes.c_uint32, "long": ctypes.c_int64, "unsigned long": ctypes.c_uint64,
    "long long": ctypes.c_int64, "unsigned long long": ctypes.c_uint64, "float": ctypes.c_float,
    "double": ctypes.c_double, "size_t": ctypes.c_uint64, "int8_t": ctypes.c_int8, "uint8_t": ctypes.c_uint8,
    "int16_t": ctypes.c_int16, "uint16_t": ctypes.c_uint16, "int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64, "uint64_t": ctypes.c_uint64,
}  # fmt: skip


def pack(name: str, parameters: Sequence[Parameter], arguments: Sequence[Any]) -> list[Any]:
    """The arguments as values of ctypes, by the types that the kernel's text gives its parameters. What is one of
    ctypes already is taken as it is, for a struct by value. A pointer is memory of the device, an array of CuPy or
    PyTorch, an address, or None.

    Raises UsageError for too few, too many, or one of another kind.
    """
    if len(arguments) != len(parameters):
        ours = sum(each in RUN_PARAMETERS for each in parameters)
        raise UsageError(f"kernel {name} has {len(parameters) - ours} parameters: {len(arguments) - ours} were given")
    return [_packed(name, parameter, argument) for parameter, argument in zip(parameters, arguments, strict=True)]


def _packed(name: str, parameter: Parameter, argument: Any) -> Any:
    if isinstance(argument, (ctypes._SimpleCData, ctypes.Structure)):
        return argument
    if parameter.pointer:
        return ctypes.c_void_p(_address(name, parameter, argument))
    kind = _TYPES.get(parameter.type)
    if kind is None:
        raise UsageError(f"kernel {name}: {parameter.name} is a {parameter.type}: give it as a ctypes.Structure")
    real = kind in (ctypes.c_float, ctypes.c_double)
    try:
        value = float(argument) if real else argument.__index__()
    except (AttributeError, TypeError, ValueError):
        raise UsageError(f"kernel {name}: {argument!r} is no {parameter.type} ({parameter.name})") from None
    packed = kind(value)
    if not real and kind not in (ctypes.c_bool, ctypes.c_char) and packed.value != value:
        raise UsageError(f"kernel {name}: {value} is too large for {parameter.type} {parameter.name}")
    return packed


def _address(name: str, parameter: Parameter, argument: Any) -> int | None:
    if argument is None or isinstance(argument, int):
        return argument
    if isinstance(found := getattr(argument, "address", None), int):
        return found
    if (told := getattr(argument, "__cuda_array_interface__", None)) is not None:
        return int(told["data"][0])
    raise UsageError(f"kernel {name}: {parameter.name} is a pointer, and {argument!r} no memory of the device")
