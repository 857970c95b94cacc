"""`runlist cdi generate`."""

from __future__ import annotations

import json as encoding
import sys
from pathlib import Path

import typer

from runlist.cli.common import App, Device

FORMATS = ("json", "yaml")


def register(app: typer.Typer) -> None:
    """Add the command group."""
    cdi = App(no_args_is_help=True, help="Offer GPUs to podman, docker and containerd by CDI.")
    app.add_typer(cdi, name="cdi")

    @cdi.callback()
    def _group() -> None:
        """A group, though it has a single command."""

    @cdi.command("generate")
    def generate(
        output: str = typer.Option(
            "-", "--output", metavar="FILE|-", help="Where to write it, such as /etc/cdi/runlist.json; default: here."
        ),
        form: str | None = typer.Option(
            None, "--format", metavar="json|yaml", help="Default: by the name of the file, else json."
        ),
        drivers: str | None = typer.Option(
            None,
            "--with",
            metavar="FILE|-",
            help="Take in this CDI specification, NVIDIA's own: JSON of `nvidia-ctk cdi generate`.",
        ),
        no_preload: bool = typer.Option(False, "--no-preload", help="Do not load librunlist.so into the programs."),
        no_hook: bool = typer.Option(
            False, "--no-hook", help="Do not tell the daemon of containers by rules of their own."
        ),
        device: Device = None,
    ) -> None:
        """Write a CDI specification: `--device runlist.dev/gpu=0` of podman or docker puts a container under the
        daemon.

        It names each GPU by index and by UUID, and `all`. A container's annotations runlist.dev/class, /weight, /cap,
        /memory and so on are its settings.
        """
        from runlist.errors import RunlistError, UsageError
        from runlist.integrations.cdi import generate as making
        from runlist.integrations.cdi.spec import as_yaml, with_drivers

        if output != "-" and not output.endswith(making.ENDINGS):
            raise UsageError(f"--output {output}: take a name that ends in .json or .yaml: engines read no others")
        chosen = form or ("yaml" if output.endswith(".yaml") else "json")
        if chosen not in FORMATS:
            raise UsageError(f"--format {chosen}: take {' or '.join(FORMATS)}")
        made = making.generate(device, preload=not no_preload, hook=not no_hook)
        if drivers is not None:
            try:
                text = sys.stdin.read() if drivers == "-" else making.read(Path(drivers))
            except UnicodeDecodeError:
                raise UsageError(f"--with {drivers}: not UTF-8 text: name a CDI specification in JSON") from None
            except (OSError, ValueError) as error:
                raise UsageError(f"--with {drivers}: it cannot be read: {getattr(error, 'strerror', error)}") from None
            made = with_drivers(made, text, f"--with {drivers}")
        text = f"{encoding.dumps(made, indent=2)}\n" if chosen == "json" else as_yaml(made)
        if output == "-":
            print(text, end="")
            return
        try:
            making.write(Path(output), text)
        except OSError as error:
            raise RunlistError(f"{output} cannot be written: {error.strerror}") from None
