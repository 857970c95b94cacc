"""`python -m bench [NAME…]`: measure figures, print them against their targets, and keep them in docs/results/."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from bench import attach, demo, idle, kill, suspend, table, three_batch
from bench.figures import Figure
from runlist import __version__, nvml
from runlist.client import Client
from runlist.demo.device import use_device
from runlist.errors import RunlistError
from runlist.rm.transport import choose_driver

BENCHMARKS: dict[str, Callable[[], list[Figure]]] = {
    "demo": demo.measure,
    "torch": demo.measure_torch,
    "attach": attach.measure,
    "suspend": suspend.measure,
    "three_batch": three_batch.measure,
    "idle": idle.measure,
    "kill": kill.measure,
    "table": table.measure,
}


def main() -> int:
    """Exit code 0 when every benchmark ran, whether or not its targets were met; 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which ones, of {', '.join(BENCHMARKS)} (default: all)"
    )
    parser.add_argument("--device", help="nvidia or emulated")
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder for the results")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - BENCHMARKS.keys()
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}: take {', '.join(BENCHMARKS)}")

    console = Console(width=120)
    figures: list[Figure] = []
    failures: dict[str, str] = {}
    with use_device(arguments.device) as device:
        Client.open(start=True).close()
        for name in arguments.names or BENCHMARKS:
            console.print(f"{name} …", style="dim")
            try:
                found = BENCHMARKS[name]()
            except (RunlistError, RuntimeError, OSError) as error:
                failures[name] = str(error)
                console.print(f"{name} did not finish: {error}", style="red")
                continue
            figures += found
            for figure in found:
                console.print(_row(figure))
        with nvml.session(choose_driver()):
            machine = {
                "gpus": [gpu.name for gpu in nvml.gpus()],
                "driver": nvml.driver_version(),
                "kernel": platform.release(),
                "python": platform.python_version(),
                "cores": os.cpu_count(),
            }
    _print(console, figures)
    now = datetime.datetime.now(datetime.UTC)
    result = {
        "date": now.isoformat(timespec="seconds"),
        "runlist": __version__,
        "device": device.name,
        "machine": machine,
        "command": "python -m bench " + " ".join(sys.argv[1:]),
        "figures": [{"met": figure.met, **msgspec.structs.asdict(figure)} for figure in figures],
        "failures": failures,
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"{now:%Y-%m-%dT%H%M}-{device.name}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    console.print(f"written to {path}")
    return 1 if failures else 0


def _row(figure: Figure) -> str:
    mark = "met   " if figure.met else "MISSED"
    return f"  {mark} {figure.name}: {figure.value:.4g} {figure.unit} (target {figure.relation} {figure.target:g})"


def _print(console: Console, figures: list[Figure]) -> None:
    shown = Table("figure", "target", "measured", "")
    for figure in figures:
        target = f"{figure.relation} {figure.target:g} {figure.unit}"
        shown.add_row(figure.name, target, f"{figure.value:.4g} {figure.unit}", "met" if figure.met else "MISSED")
    console.print(shown)


if __name__ == "__main__":
    sys.exit(main())
