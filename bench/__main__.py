"""`python -m bench [NAME…]`: measure figures, print them against their targets, and keep them in docs/results/."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from bench.benchmarks import (
    accounted,
    alloc_cost,
    attach,
    caps,
    daemon_alloc,
    daemon_kills,
    demo,
    hook_cost,
    idle,
    idle_share,
    latency_table,
    launch_cost,
    many,
    process_cap,
    quota_kills,
    quota_race,
    reaction,
    runtimes,
    service,
    sim_accuracy,
    start_cost,
    suspend,
    throughput,
    usage,
    weights,
)
from bench.harness import beside, framework_limit
from bench.harness.figures import Figure
from runlist import __version__, nvml
from runlist.client import Client
from runlist.demo.device import use_device
from runlist.errors import RunlistError
from runlist.rm.transport import choose_driver

BENCHMARKS: dict[str, Callable[[], list[Figure]]] = {
    "demo": demo.measure,
    "demo_torch": demo.measure_torch,
    "attach": attach.measure,
    "suspend": suspend.measure,
    "three_batch": beside.three,
    "idle": idle.measure,
    "daemon_kills": daemon_kills.measure,
    "latency_table": latency_table.measure,
    "weights": weights.measure,
    "throughput": throughput.measure,
    "caps": caps.measure,
    "idle_share": idle_share.measure,
    "reaction": reaction.measure,
    "eight_batch": beside.eight,
    "service": service.measure,
    "daemon_alloc": daemon_alloc.measure,
    "usage": usage.measure,
    "sim_accuracy": sim_accuracy.measure,
    "many": many.measure,
    "launch_cost": launch_cost.measure,
    "alloc_cost": alloc_cost.measure,
    "hook_cost": hook_cost.measure,
    "start_cost": start_cost.measure,
    "quota_race": quota_race.measure,
    "accounted": accounted.measure,
    "process_cap": process_cap.measure,
    "quota_kills": quota_kills.measure,
    "torch_limit": framework_limit.torch,
    "jax_limit": framework_limit.jax,
    "cupy_limit": framework_limit.cupy,
    "nccl_limit": framework_limit.nccl,
    "smi_limit": framework_limit.smi,
    "runtimes": runtimes.measure,
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
    seconds: dict[str, float] = {}
    with use_device(arguments.device) as device:
        Client.open(start=True).close()
        for name in arguments.names or BENCHMARKS:
            console.print(f"{name} …", style="dim")
            began = time.perf_counter()
            try:
                found = BENCHMARKS[name]()
            except (RunlistError, RuntimeError, OSError) as error:
                failures[name] = str(error)
                console.print(f"{name} did not finish: {error}", style="red")
                continue
            seconds[name] = round(time.perf_counter() - began, 1)
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
        "seconds": seconds,
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"{now:%Y-%m-%dT%H%M}-{device.name}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    console.print(f"written to {path}")
    return 1 if failures else 0


def _row(figure: Figure) -> str:
    return f"  {figure.verdict:6} {figure.name}: {figure.value:.4g} {figure.unit} (target {figure.aim})"


def _print(console: Console, figures: list[Figure]) -> None:
    shown = Table("figure", "target", "measured", "")
    for figure in figures:
        shown.add_row(figure.name, figure.aim, f"{figure.value:.4g} {figure.unit}", figure.verdict)
    console.print(shown)


if __name__ == "__main__":
    sys.exit(main())
