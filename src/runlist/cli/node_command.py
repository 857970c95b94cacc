"""`runlist node`."""

from __future__ import annotations

from pathlib import Path

import typer

from runlist.cli.common import Device, Json, key_values, print_json, say
from runlist.text import counted


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def node(
        cri: Path | None = typer.Option(
            None, "--cri", metavar="SOCKET", help="The container runtime's socket; default the first that is there."
        ),
        pod_resources: Path | None = typer.Option(
            None, "--pod-resources", metavar="SOCKET", help="The kubelet's; default the usual one, if it is there."
        ),
        priority_class: list[str] | None = typer.Option(
            None,
            "--priority-class",
            metavar="NAME=CLASS",
            help="Pods of this PriorityClass have this class, unless their annotations say another. May be repeated.",
        ),
        once: bool = typer.Option(False, "--once", help="Write once, and end."),
        dry_run: bool = typer.Option(False, "--dry-run", help="Print what would be written, and end."),
        device: Device = None,
        json: Json = False,
    ) -> None:
        """Tell the daemon which pod each process belongs to, and what its annotations ask for.

        Runs in the foreground beside the daemon, on a node of Kubernetes. What it wrote stays when it ends.
        """
        import runlist.daemon.lean  # noqa: F401  isort: skip  (before structlog)
        from runlist import paths
        from runlist.errors import UsageError
        from runlist.integrations.node.agent import Agent, as_data, one_look
        from runlist.integrations.node.drop_ins import DropIns, file_name
        from runlist.integrations.node.gpu_memory import GpuMemory
        from runlist.integrations.node.pod_resources import SOCKET, PodResources
        from runlist.integrations.node.runtime import Runtime
        from runlist.log import to_standard_error
        from runlist.log_limit import LogLimit
        from runlist.model import TaskClass
        from runlist.planes.registry import choose_plane

        if once and dry_run:
            raise UsageError("--once and --dry-run: take one of them")
        if json and not (once or dry_run):
            raise UsageError("--json goes with --once or --dry-run: an agent that runs prints its log")
        classes = key_values(priority_class or [])
        for name, task_class in classes.items():
            if task_class not in list(TaskClass) or task_class == TaskClass.DEADLINE:
                raise UsageError(f"--priority-class {name}={task_class}: take latency, normal or batch")
        plane = choose_plane(device)
        drop_ins = DropIns(paths.drop_ins(plane), write=not dry_run)
        limit = LogLimit()
        to_standard_error(limit)
        kubelet = PodResources(pod_resources or SOCKET)
        agent = Agent(
            Runtime(cri),
            drop_ins,
            GpuMemory(plane, device),
            device=device,
            priority_classes=classes,
            kubelet=kubelet,
            now_and_then=limit.say_left_out,
        )
        if not (once or dry_run):
            agent.run()
            return
        results = one_look(agent)
        if json:
            print_json({"containers": as_data(results, drop_ins.path)})
        elif dry_run:
            for one in results:
                print(f"# {drop_ins.path / file_name(one.container)}\n{one.text}")
        else:
            written = f"{counted(len(results), 'container')}, {counted(drop_ins.writes, 'file')} written"
            say(f"{written} in {drop_ins.path}")
