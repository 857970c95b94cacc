"""The file that keeps what a run found: figures and raw data, of which code, on which machine."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bench import ROOT
from bench.harness.figures import Figure
from runlist import __version__
from runlist.planes.nvidia import nvml


@dataclass
class Run:
    """What a run found, by benchmark where it is a mapping."""

    figures: dict[str, list[Figure]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    """What a benchmark would have needed that nobody asked for by name."""
    seconds: dict[str, float] = field(default_factory=dict)


def commit() -> str | None:
    """The commit that is checked out here, with `-dirty` when files of it were changed; None when git cannot tell."""
    words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def machine() -> dict[str, Any]:
    """Where this runs; NVML is initialised meanwhile."""
    return {
        "gpus": [gpu.name for gpu in nvml.gpus()],
        "driver": nvml.driver_version(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "processor": _processor(),
    }


def _processor() -> str:
    """Its model, as the kernel names it; empty where it does not."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def write(
    run: Run, folder: Path, device: str, names: Sequence[str], of_commit: str | None, where: Mapping[str, Any],
    options: Sequence[str] = (),
) -> Path:  # fmt: skip
    """Write the run into a new file of `folder`, which is made; its path. `names` is what was asked for by name,
    `options` what was said of benchmarks' own options, as words.
    """
    now = datetime.datetime.now(datetime.UTC)
    result = {
        "date": now.isoformat(timespec="seconds"),
        "runlist": __version__,
        "commit": of_commit,
        "device": device,
        "machine": where,
        "command": " ".join(["python -m bench", *names, *options, "--device", device]),
        "figures": [
            {"benchmark": benchmark, "met": figure.met, **msgspec.structs.asdict(figure)}
            for benchmark, figures in run.figures.items()
            for figure in figures
        ],
        "failures": run.failures,
        "left_out": run.left_out,
        "seconds": run.seconds,
    }
    folder.mkdir(parents=True, exist_ok=True)
    stem = "-".join([f"{now:%Y-%m-%dT%H%M}", device, *(names if len(names) == 1 else ())])
    text = msgspec.json.format(msgspec.json.encode(result)) + b"\n"
    number = 1
    while True:
        path = folder / (f"{stem}.json" if number == 1 else f"{stem}-{number}.json")
        try:
            with path.open("xb") as file:
                file.write(text)
        except FileExistsError:  # another run has ended in the same minute
            number += 1
        else:
            return path
