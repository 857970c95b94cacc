"""`runlist slurm prolog|epilog|clean`."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from runlist.cli.common import App, Device, whole


def register(app: typer.Typer) -> None:
    """Add the command group."""
    slurm = App(no_args_is_help=True, help="What Slurm's prolog and epilog call, so that shards of a GPU hold.")
    app.add_typer(slurm, name="slurm")

    @slurm.command("prolog")
    def prolog(
        shards: int | None = typer.Option(
            None, "--shards", parser=whole(1), metavar="N", help="Shards that a GPU has; default: Slurm is asked."
        ),
        task_class: str = typer.Option("", "--class", metavar="CLASS", help="Class of every job's processes."),
        cap: bool = typer.Option(False, "--cap", help="A job gets its part at most, also of an idle GPU."),
        memory: str = typer.Option("", "--memory", metavar="SIZE", help="Memory of a GPU: a job may hold its part."),
        by: str = typer.Option(
            "cgroup", "--by", metavar="cgroup|environment", help="How a job's processes are told from others."
        ),
        device: Device = None,
    ) -> None:
        """Write the rule of the job that starts: its shards of a GPU become its weight.

        slurmd runs it. It never fails a job: what goes wrong is one line in the system's log.
        """
        from runlist.errors import UsageError
        from runlist.integrations.slurm import hooks
        from runlist.integrations.slurm.drop_in import Wishes
        from runlist.settings.table import parse_request

        wanted = {"class": task_class, "memory": memory}
        parse_request({key: value for key, value in wanted.items() if value})
        if by not in ("cgroup", "environment"):
            raise UsageError(f"--by {by}: take cgroup or environment")
        wishes = Wishes(task_class, cap, memory, by == "environment")
        hooks.prolog(_folder(device), os.environ, wishes, shards)

    @slurm.command("epilog")
    def epilog(device: Device = None) -> None:
        """Remove the rule of the job that has ended. slurmd runs it."""
        from runlist.integrations.slurm import hooks

        hooks.epilog(_folder(device), os.environ)

    @slurm.command("clean")
    def clean(device: Device = None) -> None:
        """Remove the rules of jobs that are gone and whose epilog never ran; every prolog does that, too."""
        from runlist.integrations.slurm import hooks

        variables = {"SLURMD_NODENAME": os.uname().nodename.partition(".")[0], **os.environ}
        hooks.clean(_folder(device), variables)


def _folder(device: str | None) -> Path:
    from runlist import paths
    from runlist.planes.registry import choose_plane

    return paths.drop_ins(choose_plane(device))
