"""`runlist simulate`."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import typer

from runlist.cli import complete
from runlist.cli.common import PICTURES, Json, PolicyOptions, draws, key_values, number, output_file, print_json, whole


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def simulate(
        policy: str = typer.Option(
            "priority",
            "--policy",
            help="A policy's name, the path of a .py file, or none: the driver alone.",
            autocompletion=complete.policies,
        ),
        option: PolicyOptions = None,
        trace: str = typer.Option(
            "service-and-batch",
            "--trace",
            help="A ready trace's name, or the path of a .toml, .json or .csv file.",
            autocompletion=complete.traces,
        ),
        list_traces: bool = typer.Option(False, "--list-traces", help="List the ready traces, and do nothing else."),
        gpus: int | None = typer.Option(
            None, "--gpus", parser=whole(1, 10_000), metavar="N", help="How many GPUs; default: the trace's."
        ),
        seconds: float | None = typer.Option(
            None, "--seconds", parser=number(0.001, 1e6), metavar="S", help="How long; default: the trace's."
        ),
        seed: int = typer.Option(
            1, "--seed", parser=whole(0), metavar="N", help="The same seed gives the same result."
        ),
        compress: float | None = typer.Option(
            None,
            "--compress",
            parser=number(0.001, 1e6),
            metavar="S",
            help="Seconds of a cluster trace in one simulated second; default 60.",
        ),
        skip: float | None = typer.Option(
            None, "--skip", parser=number(0, 1e6), metavar="S", help="Seconds of a cluster trace to pass over first."
        ),
        plot: Path | None = typer.Option(
            None, "--plot", metavar="FILE.png", help="Draw latencies and shares. Needs the extra plot."
        ),
        json: Json = False,
    ) -> None:
        """Run a policy on simulated GPUs, with the tenants of a trace.

        The policy is the same file as live; GPUs, hosts and the daemon's controls are a model with the figures of an
        H200. Latencies count from the intended arrival. Prints utilisation, shares, latencies, fairness and misses.
        """
        from rich.console import Console

        from runlist.policies import PolicySpec
        from runlist.sim import builtin_traces, load_trace
        from runlist.sim import simulate as run
        from runlist.sim.report import show, speed

        if list_traces:
            traces = builtin_traces()
            print_json(traces) if json else print("\n".join(f"{name:<24}  {about}" for name, about in traces.items()))
            return
        if plot is not None:
            output_file("--plot", plot, PICTURES)
            draws("--plot")
        spec = PolicySpec(policy, key_values(option or []))
        loaded = load_trace(trace, seconds, compress=compress, skip=skip)
        with contextlib.redirect_stdout(sys.stderr) if json else contextlib.nullcontext():  # what a policy prints
            outcome = run(loaded, spec, gpus=gpus, seconds=seconds, seed=seed)
        if plot is not None:
            from runlist.sim.plot import plot as draw

            draw(outcome, plot)
        if json:
            print_json(outcome.result)
            Console(stderr=True).print(speed(outcome), highlight=False)
        else:
            show(outcome)
