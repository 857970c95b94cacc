"""Prints the directories of cuda.h and nvml.h in this Python's wheels, separated by semicolons, for CMake."""

import sys
from importlib import metadata

WHEELS = {"cuda.h": "nvidia-cuda-runtime", "nvml.h": "nvidia-nvml-dev"}


def directory(header: str, wheel: str) -> str:
    """Directory of `header` in the installed distribution `wheel`."""
    try:
        files = metadata.files(wheel) or []
    except metadata.PackageNotFoundError:
        sys.exit(f"{header} not found: pip install {wheel}, or configure with -DCUDA_INCLUDE_DIR=DIR")
    for file in files:
        if file.name == header:
            return str(file.locate().resolve().parent)
    sys.exit(f"{header} not found in the wheel {wheel}: configure with -DCUDA_INCLUDE_DIR=DIR")


print(";".join(dict.fromkeys(directory(header, wheel) for header, wheel in WHEELS.items())))
