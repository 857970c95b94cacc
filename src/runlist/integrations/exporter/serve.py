"""The exporter as a program: looks at the daemon when somebody asks, and answers in Prometheus' formats."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import ssl
import stat
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from runlist import files
from runlist.client import Client
from runlist.errors import NoPermissionError, RunlistError, UsageError
from runlist.integrations.exporter.dialects import NAMES, Device, Devices, Dialect
from runlist.integrations.exporter.families import Metrics, written
from runlist.integrations.exporter.http import Password, Request, Response, Server, plain, reason
from runlist.integrations.exporter.look import PATIENCE_S, Look, look
from runlist.log import say
from runlist.planes.registry import choose_plane

PORT = 9878
LISTEN = f"127.0.0.1:{PORT}"
"""Where it listens unless told otherwise: Prometheus' exporters have ports from 9100 to 9999."""
_PORT = re.compile(r"[0-9]{1,5}")
_LONGEST_PASSWORD = 4096
"""Bytes of a name and its password, with what is around them."""

MAX_SERIES = 20_000
KEPT_S = 1.0
"""A look serves everybody for so long: however often one asks, the daemon is asked once a second."""

EVERY_S = 15.0
"""How often a file is written."""

_PAGE = b'<!doctype html><title>runlist exporter</title><p>runlist exporter: <a href="/metrics">metrics</a>\n'


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    device: str | None = None
    dialects: Sequence[str] = ()
    per_process: bool = False
    max_series: int = MAX_SERIES


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, `[HOST]:PORT` or `:PORT`. Raises UsageError."""
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]") if host.startswith("[") and host.endswith("]") else host
    number = int(port) if _PORT.fullmatch(port) else 65536
    if not colon or number > 65535 or (":" in bare and bare == host):
        raise UsageError(f"{text[:100]}: write an address and a port, such as {LISTEN} or [::1]:{PORT}")
    return bare, number


def parse_dialects(text: str) -> list[str]:
    """Names of dialects. Raises UsageError."""
    found = [name.strip() for name in text.split(",")]
    for name in found:
        if name not in NAMES:
            raise UsageError(f"no names of {name!r}: take {', '.join(NAMES)}")
    return list(dict.fromkeys(found))


def read_password(path: Path) -> Password:
    """The name and password in a file: one line `name:password`. Raises UsageError or NoPermissionError."""
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):  # a pipe may be how a shell hands it over
            raise UsageError(f"--password-file {path}: not a file: name one with one line, name:password")
        if mode & 0o077:
            raise NoPermissionError(f"{path} can be read by others: chmod 600 {path}")
        with path.open("rb") as file:
            text = file.read(_LONGEST_PASSWORD + 1).decode(errors="replace")
    except OSError as error:
        raise UsageError(f"--password-file {path}: it cannot be read: {error.strerror}") from None
    name, colon, password = text.strip().partition(":") if len(text) <= _LONGEST_PASSWORD else ("", "", "")
    if not (name and colon and password) or {"\ufffd", "\n"} & set(name + password):
        raise UsageError(f"{path}: write one line, name:password")
    return Password(name, password)


def _no_password() -> str:
    raise ValueError("the key asks for a password: take one without")


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """A server's context. Raises UsageError. A key that is locked asks nobody: a service has no terminal."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except ssl.SSLError as error:
        why = error.reason or "no PEM"
    except OSError as error:
        why = error.strerror or str(error)
    except ValueError as error:
        why = str(error)
    else:
        return context
    raise UsageError(f"{certificate} and {key} are no certificate with its key: {why}")


class Exporter:
    """Looks, and writes what was seen. Not thread-safe."""

    def __init__(self, options: Options) -> None:
        choose_plane(options.device)  # a wrong name is told here, not again and again
        self._device = options.device
        self._devices: Devices = {}
        dialects = [Dialect(name, lambda: self._devices) for name in options.dialects]
        self._metrics = Metrics(options.max_series, per_process=options.per_process, dialects=dialects)
        self._wants_devices = bool(dialects)
        self._trouble = ""

    def look(self) -> Look:
        """Look now; what keeps it from being of use is said once."""
        seen = look(self._open)
        if seen.trouble != self._trouble:
            say(seen.trouble or "the daemon answers")
            self._trouble = seen.trouble
        if self._wants_devices and seen.status is not None:
            unknown = {gpu.gpu for gpu in seen.status.gpus} - self._devices.keys()
            if unknown:
                self._devices = {**dict.fromkeys(unknown, Device(None, "")), **_devices(self._device)}
        return seen

    def text(self, seen: Look, *, openmetrics: bool, dropped: int = 0) -> tuple[str, bytes]:
        """Content type and text."""
        return written(self._metrics.families(seen, dropped), openmetrics=openmetrics)

    def _open(self) -> Client:
        return Client.open(device=self._device, patience_s=PATIENCE_S)


def _devices(device: str | None) -> Devices:
    """The GPUs as their driver numbers them; none where it does not tell."""
    try:
        census = choose_plane(device).census()
    except Exception:  # no driver here: the names do without
        return {}
    try:
        return {gpu.uuid: Device(gpu.index, gpu.name) for gpu in census.gpus()}
    except Exception:
        return {}
    finally:
        census.close()


def print_once(exporter: Exporter) -> None:
    """Print all metrics."""
    _, text = exporter.text(exporter.look(), openmetrics=False)
    sys.stdout.write(text.decode())


class _Site:
    """The pages. One look at a time, and one writing of it in each format, for all who ask."""

    def __init__(self, exporter: Exporter, dropped: Callable[[], int]) -> None:
        self._exporter = exporter
        self._dropped = dropped
        self._turn = asyncio.Lock()
        self._seen: Look | None = None
        self._seen_at = 0.0
        self._texts: dict[bool, tuple[str, bytes]] = {}

    async def answer(self, request: Request) -> Response:
        match request.path:
            case "/metrics":
                content_type, text = await self._text(openmetrics=_wants_openmetrics(request.headers.get("accept", "")))
                return Response(HTTPStatus.OK, text, content_type)
            case "/":
                return Response(HTTPStatus.OK, _PAGE, "text/html; charset=utf-8")
            case "/-/healthy":
                return plain(HTTPStatus.OK, "healthy")
            case _:
                return plain(HTTPStatus.NOT_FOUND, "there is /metrics")

    async def _text(self, *, openmetrics: bool) -> tuple[str, bytes]:
        async with self._turn:
            if self._seen is None or time.monotonic() - self._seen_at >= KEPT_S:
                self._seen = await asyncio.to_thread(self._exporter.look)
                self._seen_at = time.monotonic()
                self._texts.clear()
            if openmetrics not in self._texts:
                self._texts[openmetrics] = self._exporter.text(
                    self._seen, openmetrics=openmetrics, dropped=self._dropped()
                )
            return self._texts[openmetrics]


def _wants_openmetrics(accept: str) -> bool:
    """Whether a header `Accept` prefers OpenMetrics to the older text."""
    weights = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for choice in accept.split(","):
        kind, *parameters = (part.strip() for part in choice.split(";"))
        weight = next((part[2:] for part in parameters if part.startswith("q=")), "1")
        if kind.lower() in weights:
            with contextlib.suppress(ValueError):
                weights[kind.lower()] = max(weights[kind.lower()], float(weight))
    return (
        weights["application/openmetrics-text"] > 0 and weights["application/openmetrics-text"] >= weights["text/plain"]
    )


async def serve(
    exporter: Exporter,
    address: tuple[str, int] | None,
    *,
    textfile: Path | None = None,
    every_s: float = EVERY_S,
    password: Password | None = None,
    tls: ssl.SSLContext | None = None,
    on_ready: Callable[[str, int], None] = lambda *_: None,
) -> None:
    """Serve an address, write a file, or both, until a signal. Raises RunlistError where one cannot listen or write."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = Server(lambda request: site.answer(request), password)  # noqa: PLW0108 (it is made below)
    site = _Site(exporter, lambda: server.dropped)
    writing = None
    try:
        if textfile is not None:
            _write(textfile, exporter)
            writing = loop.create_task(_keep_writing(textfile, exporter, every_s))
        if address is not None:
            try:
                host, port = await server.listen(*address, tls)
            except OSError as error:
                shown = f"[{address[0]}]" if ":" in address[0] else address[0]
                raise RunlistError(f"cannot listen on {shown}:{address[1]}: {reason(error)}") from None
            on_ready(host, port)
        await stop.wait()
    finally:
        if writing is not None:
            writing.cancel()
        await server.close()


async def _keep_writing(path: Path, exporter: Exporter, every_s: float) -> None:
    trouble = ""
    while True:
        await asyncio.sleep(every_s)
        try:
            await asyncio.to_thread(_write, path, exporter)
            trouble = ""
        except RunlistError as error:  # the disk may have room again later
            if str(error) != trouble:
                say(trouble := str(error))


def _write(path: Path, exporter: Exporter) -> None:
    _, text = exporter.text(exporter.look(), openmetrics=False)
    try:
        files.replace(path, text)
    except OSError as error:
        raise RunlistError(f"{path} cannot be written: {error.strerror or error}") from None
