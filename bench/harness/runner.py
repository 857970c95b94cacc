"""`python -m bench [NAME…]`: measure figures, print them against their targets, and keep them in docs/results/."""

from __future__ import annotations

import argparse
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.harness import record
from bench.harness.benchmark import Benchmark, find
from bench.harness.figures import Figure
from runlist.client import Client
from runlist.demo.device import use_device
from runlist.errors import ExitCode, RunlistError
from runlist.planes.nvidia import nvml
from runlist.planes.nvidia.rm.transport import choose_driver

WIDTH = 120


def main(words: Sequence[str] | None = None) -> int:
    """Exit code 0 when every benchmark ran, whether or not its targets were met; 1 when one failed; 2 for a name that
    is not one, and for code whose commit nobody names.
    """
    known = find()
    words = sys.argv[1:] if words is None else words
    arguments = _parser(known).parse_args(words)
    if unknown := [name for name in arguments.names if name not in known]:
        print(f"no benchmark {', '.join(unknown)}: take {', '.join(known)}", file=sys.stderr)
        return ExitCode.USAGE
    if arguments.commit is None:
        print("git cannot tell which code this is: name its commit with --commit", file=sys.stderr)
        return ExitCode.USAGE
    console = Console(width=WIDTH)
    try:
        with use_device(arguments.device) as device:
            with nvml.session(choose_driver()):
                where = record.machine()
            Client.open(start=True).close()
            run = _measure(console, known, arguments, device.name, len(where["gpus"]))
            where["kernel plane"] = _kernel_plane()
    except RunlistError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    _print(console, [figure for figures in run.figures.values() for figure in figures])
    path = record.write(
        run, arguments.out, device.name, arguments.names, arguments.commit, where, _said(known, arguments)
    )
    console.print(f"written to {path}")
    return ExitCode.FAILED if run.failures else ExitCode.DONE


def _parser(known: Mapping[str, Benchmark]) -> argparse.ArgumentParser:
    listed = [
        textwrap.fill(f"{name:<15} {one.summary}", WIDTH, initial_indent="  ", subsequent_indent=" " * 18)
        for name, one in known.items()
    ]
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        epilog="\n".join(["benchmarks:", *listed]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones (default: all that can run here)")
    parser.add_argument("--device", help="nvidia or emulated")
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder for the results")
    parser.add_argument("--commit", default=record.commit(), help="of the code, where git cannot tell")
    for name, one in known.items():
        if one.add_options is not None:
            one.add_options(parser.add_argument_group(f"options of {name}"))
    return parser


def _said(known: Mapping[str, Benchmark], arguments: argparse.Namespace) -> list[str]:
    """The options of benchmarks that differ from what they are by default, as words. Where a file was put is
    nobody else's business.
    """
    plain = _parser(known).parse_args([])
    names = [name for one in known.values() for name in one.options]
    return [
        f"--{name.replace('_', '-')}={getattr(arguments, name)}"
        for name in names
        if getattr(arguments, name) != getattr(plain, name) and not isinstance(getattr(arguments, name), Path)
    ]


def _measure(
    console: Console, known: Mapping[str, Benchmark], arguments: argparse.Namespace, device: str, gpus: int
) -> record.Run:
    run, names = record.Run(), arguments.names
    for name in names or known:
        console.print(f"{name} …", style="dim")
        if lacks := known[name].needs.missing(device, gpus):
            (run.failures if names else run.left_out)[name] = f"needs {lacks}"
            console.print(f"{name} needs {lacks}", style="red" if names else "dim")
            continue
        began = time.perf_counter()
        try:
            found = known[name].run(arguments)
        except (RunlistError, RuntimeError, OSError, subprocess.SubprocessError) as error:
            run.failures[name] = str(error)
            console.print(f"{name} did not finish: {error}", style="red")
            continue
        run.seconds[name] = round(time.perf_counter() - began, 1)
        run.figures.setdefault(name, []).extend(found)
        for figure in found:
            console.print(_row(figure))
    return run


def _kernel_plane() -> str:
    """That of the daemon, which others may have started."""
    try:
        with Client.open() as client:
            return client.status().kernel_plane
    except RunlistError as error:  # a benchmark may have ended it
        return str(error)


def _row(figure: Figure) -> str:
    return f"  {figure.verdict:6} {figure.name}: {figure.value:.4g} {figure.unit} (target {figure.aim})"


def _print(console: Console, figures: Sequence[Figure]) -> None:
    shown = Table("figure", "target", "measured", "")
    for figure in figures:
        shown.add_row(figure.name, figure.aim, f"{figure.value:.4g} {figure.unit}", figure.verdict)
    console.print(shown)
