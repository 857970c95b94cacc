"""`runlist exporter`."""

from __future__ import annotations

from pathlib import Path

import typer

from runlist.cli.common import Device, number, output_file, say, whole

_LOCAL = ("127.", "::1", "localhost")


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def exporter(
        listen: str | None = typer.Option(
            None, "--listen", metavar="ADDRESS:PORT", help="Where to listen; default 127.0.0.1:9878."
        ),
        names: str | None = typer.Option(
            None, "--names", metavar="dcgm,kai,hami", help="Also the names of others, for dashboards that exist."
        ),
        per_process: bool = typer.Option(False, "--per-process", help="Also a series for each process, by its id."),
        max_series: int = typer.Option(
            20_000, "--max-series", parser=whole(100, 10_000_000), metavar="N", help="The most series of workloads."
        ),
        once: bool = typer.Option(False, "--once", help="Print the metrics, instead of serving them."),
        textfile: Path | None = typer.Option(
            None, "--textfile", help="Write them to this file, for node_exporter; with --listen, serve them, too."
        ),
        every: float | None = typer.Option(
            None, "--every", parser=number(1, 3600), metavar="SECONDS", help="How often to write the file; default 15."
        ),
        password_file: Path | None = typer.Option(
            None, "--password-file", help="Ask for the name and password in this file: one line, name:password."
        ),
        tls_cert: Path | None = typer.Option(None, "--tls-cert", help="Serve by TLS with this certificate (PEM)."),
        tls_key: Path | None = typer.Option(None, "--tls-key", help="The certificate's key (PEM)."),
        device: Device = None,
    ) -> None:
        """Serve metrics for Prometheus: GPU seconds, shares, memory and latency by workload, GPU and daemon.

        It shows what the daemon shows to its user: run by root, everything; else, what is one's own.
        """
        import asyncio

        from runlist.errors import MissingExtra, UsageError

        try:
            from runlist.integrations.exporter import serve
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("prometheus_client"):
                raise
            raise MissingExtra("the exporter", "prometheus-client", "metrics") from None

        if once and (listen is not None or textfile is not None):
            raise UsageError("--once prints: leave --listen and --textfile out")
        if (tls_cert is None) != (tls_key is None):
            raise UsageError("--tls-cert and --tls-key go together")
        if every is not None and textfile is None:
            raise UsageError("--every goes with --textfile: what is served is as new as the question")
        asked = {"--password-file": password_file, "--tls-cert and --tls-key": tls_cert}
        unused = [name for name, value in asked.items() if value is not None]
        if unused and (once or (textfile is not None and listen is None)):
            raise UsageError(f"{', '.join(unused)}: for who is served, and nobody is: give --listen, too")
        if textfile is not None:
            output_file("--textfile", textfile, [".prom"])
        dialects = [] if names is None else serve.parse_dialects(names)
        serves = textfile is None or listen is not None
        address = serve.parse_address(listen or serve.LISTEN) if serves else None
        password = None if password_file is None else serve.read_password(password_file)
        tls = None if tls_cert is None or tls_key is None else serve.tls_context(tls_cert, tls_key)
        made = serve.Exporter(serve.Options(device, dialects, per_process, max_series))
        if once:
            serve.print_once(made)
            return
        if address is not None and password is None and not address[0].startswith(_LOCAL):
            say(f"everybody who reaches {listen} sees these metrics: --password-file asks for a password")

        def ready(host: str, port: int) -> None:
            shown = f"[{host}]" if ":" in host else host
            say(f"metrics on {'http' if tls is None else 'https'}://{shown}:{port}/metrics")

        asyncio.run(
            serve.serve(
                made,
                address,
                textfile=textfile,
                every_s=every or serve.EVERY_S,
                password=password,
                tls=tls,
                on_ready=ready,
            )
        )
