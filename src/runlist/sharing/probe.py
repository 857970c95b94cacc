"""What the driver says of the GPUs that a program would see: a program of its own, since a driver is asked once a
process. It prints one line of JSON, and makes no context.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from typing import Any

_MULTIPROCESSOR_COUNT, _COMPUTE_MODE = 16, 20


class _Refused(Exception):
    """A function of the driver failed; the message names its error."""


def _look() -> dict[str, Any]:
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: Any) -> None:
        if code := getattr(cuda, name)(*arguments):
            text = ctypes.c_char_p()
            cuda.cuGetErrorName(code, ctypes.byref(text))
            raise _Refused((text.value or b"error %d" % code).decode())

    def attribute(number: int, device: ctypes.c_int) -> int:
        value = ctypes.c_int()
        call("cuDeviceGetAttribute", ctypes.byref(value), number, device)
        return value.value

    call("cuInit", 0)
    count = ctypes.c_int()
    call("cuDeviceGetCount", ctypes.byref(count))
    found: list[dict[str, Any]] = []
    for ordinal in range(count.value):
        device, uuid, name = ctypes.c_int(), ctypes.create_string_buffer(16), ctypes.create_string_buffer(256)
        call("cuDeviceGet", ctypes.byref(device), ordinal)
        call("cuDeviceGetUuid_v2", uuid, device)
        call("cuDeviceGetName", name, len(name), device)
        found.append(
            {
                "uuid": _written(uuid.raw),
                "name": name.value.decode(errors="replace"),
                "sms": attribute(_MULTIPROCESSOR_COUNT, device),
                "mode": attribute(_COMPUTE_MODE, device),
            }
        )
    return {"gpus": found}


def _written(octets: Sequence[int] | bytes) -> str:
    text = bytes(octets).hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def main() -> None:
    """Print it."""
    try:
        answer = _look()
    except OSError:
        answer = {"error": "there is no libcuda.so.1"}
    except _Refused as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
