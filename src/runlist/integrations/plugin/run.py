"""The process of `runlist plugin`: looks at the GPUs, and serves their pieces to the kubelet until a signal ends it."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from runlist import files, paths
from runlist.errors import RunlistError
from runlist.integrations.cdi import generate, spec
from runlist.integrations.kubernetes import names
from runlist.integrations.plugin.given import Ways
from runlist.integrations.plugin.pieces import Resource
from runlist.integrations.plugin.server import PluginServer
from runlist.integrations.plugin.service import Gpus, Pairs, Service
from runlist.log import to_standard_error
from runlist.log_limit import LogLimit
from runlist.planes.interface import GpuWatch, NodeGpu
from runlist.planes.process.library import library
from runlist.planes.registry import choose_plane

FOLDER = Path("/var/lib/kubelet/device-plugins")
CDI_FILE = "runlist.dev-gpu.json"
LOOK_S = 1.0
"""How long a look at the GPUs waits for news. A GPU that vanished is noticed within that, an XID at once."""

RESOURCES = {"share": names.SHARE_RESOURCE, "memory": names.MEMORY_RESOURCE}

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Choices:
    """What `runlist plugin` is told. `install` is a folder of the host, for the library: this process may be in a
    container, and the kubelet mounts the host's files. `cdi` is the folder for the specification, or None for none.
    """

    folder: Path = FOLDER
    resources: Sequence[str] = ("share",)
    install: Path | None = None
    preload: bool = True
    cdi: Path | None = None
    others: str = ""
    device: str | None = None


def main(choices: Choices) -> None:
    """Serve until SIGINT or SIGTERM. Raises RunlistError for what cannot work."""
    limit = LogLimit()
    to_standard_error(limit)
    asyncio.run(_run(choices, limit))


async def _run(choices: Choices, limit: LogLimit) -> None:
    plane = choose_plane(choices.device)
    health = plane.watch_gpus()
    installed = _library(choices)
    messages = paths.tenants_folder(plane)
    try:
        paths.make_private(messages.parent)
        paths.make_private(messages, 0o755)  # the daemon may come later, and a container mounts it now
    except RunlistError as error:
        log.warning("containers get no socket for messages", reason=str(error))
    gpus = Gpus([])  # so that what is unfit for work from the beginning is said, too
    gpus.set(await asyncio.to_thread(health.look, 0.0))
    if not gpus.now:
        log.warning("no GPU is here: looking for one every few seconds")

    def ways() -> Ways:
        return Ways(
            installed,
            messages if messages.is_dir() else None,
            choices.cdi is not None,
            choices.others,
            memory_follows="memory" not in choices.resources,
        )

    pairs = Pairs()
    servers = [
        PluginServer(choices.folder, resource, Service(resource, gpus, ways, pairs))
        for resource in (Resource(RESOURCES[name]) for name in choices.resources)
    ]
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    jobs: list[asyncio.Task[Any]] = [loop.create_task(server.run()) for server in servers]
    jobs.append(loop.create_task(_watch(health, gpus, choices, ways, limit)))
    jobs.append(loop.create_task(stop.wait()))
    log.info("ready", gpus=len(gpus.now), resources=[RESOURCES[name] for name in choices.resources])
    done, pending = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
    for job in pending:
        job.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    for job in done:
        job.result()  # or what ended it


async def _watch(health: GpuWatch, gpus: Gpus, choices: Choices, ways: Callable[[], Ways], limit: LogLimit) -> None:
    """Look at the GPUs, for ever, and keep what containers get on the host as it should be."""
    described = ""
    try:
        while True:
            described = _keep(choices, gpus.now, ways(), described)
            gpus.set(await asyncio.to_thread(health.look, LOOK_S))
            limit.say_left_out()
    finally:
        health.close()


def _keep(choices: Choices, gpus: list[NodeGpu], ways: Ways, described: str) -> str:
    """Put the library and the specification for CDI there again, where they are gone, or it would be another than the
    one that was `described` last. Returns what is described now, nothing where that did not work.
    """
    if choices.install is not None and ways.library is not None and not ways.library.exists():
        try:
            _library(choices)
        except RunlistError as error:
            log.warning("the library is gone", reason=str(error))
    if choices.cdi is None or not gpus:
        return described
    path = choices.cdi / CDI_FILE
    # The node agent writes the rules here: there is no hook.
    text = f"{json.dumps(spec.spec(gpus, ways.library, ways.messages, (), {}), indent=2)}\n"
    if text == described and path.exists():
        return described
    try:
        generate.write(path, text)
    except (RunlistError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        log.warning("the CDI specification cannot be written", path=str(path), reason=reason)
        return ""
    return text


def _library(choices: Choices) -> Path | None:
    """The host's path of librunlist.so, put there if that is wanted. Programs that have it loaded keep the one that
    they have.
    """
    if not choices.preload:
        return None
    try:
        own = library()
    except FileNotFoundError as error:
        raise RunlistError(str(error)) from None
    if choices.install is None:
        return own
    paths.make_private(choices.install, 0o755, "name a folder of your own by --install")
    target = choices.install / own.name
    try:
        files.replace(target, own.read_bytes(), 0o755)
    except OSError as error:
        raise RunlistError(f"{target} cannot be written: {error.strerror}") from None
    return target
