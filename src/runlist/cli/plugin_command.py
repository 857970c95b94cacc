"""`runlist plugin`."""

from __future__ import annotations

import os
import re
from importlib import import_module
from pathlib import Path

import typer

from runlist.cli.common import Device

_KIND = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
"""CDI's name of a kind of devices."""


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def plugin(
        folder: Path = typer.Option(
            Path("/var/lib/kubelet/device-plugins"), "--folder", help="The kubelet's folder of device plugins."
        ),
        resources: str = typer.Option(
            "share",
            "--resources",
            metavar="share|memory|share,memory",
            help="What to offer; with `share` alone it is of time and memory.",
        ),
        install: Path | None = typer.Option(
            None, "--install", help="A folder of the host: librunlist.so is copied there for containers to mount."
        ),
        no_preload: bool = typer.Option(
            False, "--no-preload", help="Do not load librunlist.so into the containers' programs."
        ),
        cdi: Path | None = typer.Option(
            None,
            "--cdi",
            metavar="FOLDER",
            help="Give devices by CDI, and write its specification there: /var/run/cdi.",
        ),
        drivers: str | None = typer.Option(
            None,
            "--with",
            metavar="KIND",
            help="With --cdi: the kind by which NVIDIA's own devices are given, too: nvidia.com/gpu.",
        ),
        device: Device = None,
    ) -> None:
        """Offer shares of each GPU to Kubernetes, in the foreground, until a signal: a device plugin of the kubelet.

        Containers ask for runlist.dev/gpu-share (percent of a GPU) and, with `--resources share,memory`, for
        runlist.dev/gpu-memory (GiB). `runlist node` makes their settings of what they got.
        """
        from runlist.errors import MissingExtra, UsageError

        asked = tuple(resources.split(","))
        if asked not in (("share",), ("memory",), ("share", "memory"), ("memory", "share")):
            raise UsageError(f"--resources {resources}: take share, memory, or both with a comma")
        if drivers is not None and cdi is None:
            raise UsageError("--with goes with --cdi")
        if drivers is not None and _KIND.fullmatch(drivers) is None:
            raise UsageError(f"--with {drivers}: take a kind of CDI, VENDOR/CLASS, such as nvidia.com/gpu")
        for name, path in {"--folder": folder, "--install": install, "--cdi": cdi}.items():
            if path is not None and path.exists() and not path.is_dir():
                raise UsageError(f"{name} {path}: this is no folder: name one")
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what is to be said we say ourselves
        try:
            import_module("google.protobuf")
            import_module("grpc")
        except ImportError:
            raise MissingExtra("runlist plugin", "grpcio and protobuf", "node") from None
        from runlist.integrations.plugin.run import Choices, main

        main(Choices(folder, asked, install, not no_preload, cdi, drivers or "", device))
