"""A resource's socket in the kubelet's folder, and its registration: made again whenever either goes away.

A kubelet that starts removes all sockets of its folder and makes its own anew; it knows no plugin then. So five times a
second the two are looked at, which costs two system calls and also sees a folder that was itself replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from pathlib import Path

import grpc
import structlog

from runlist import trusted
from runlist.errors import RunlistError
from runlist.integrations.kubernetes import deviceplugin_autogen as api
from runlist.integrations.plugin.pieces import Resource
from runlist.integrations.plugin.service import Service, options
from runlist.text import printable

VERSION = "v1beta1"
KUBELET_SOCKET = "kubelet.sock"
LOOK_S = 0.2
RETRY_S = 5.0
"""The longest pause before a kubelet that refused is asked again."""
REGISTER_S = 10.0
MOST_CALLS = 256
"""At the same time; a kubelet has two or three."""
LONGEST_SOCKET = 107
_MOST_SAID = 300

log = structlog.get_logger()

Identity = tuple[int, int, int]
"""Of a socket's file: device, inode, and when it was made: inodes are used again."""


class PluginServer:
    """Serves one resource to the kubelet of a folder, until it is cancelled."""

    def __init__(self, folder: Path, resource: Resource, service: Service) -> None:
        self._path = folder / resource.endpoint
        self._kubelet = folder / KUBELET_SOCKET
        self._resource = resource
        self._service = service
        self._server: grpc.aio.Server | None = None
        self._own: Identity | None = None
        self._told: Identity | None = None  # the kubelet that knows us
        self._said = ""
        if len(os.fsencode(self._path)) > LONGEST_SOCKET:
            raise RunlistError(
                f"{self._path}: a socket's path has {LONGEST_SOCKET} bytes at most: take a shorter folder"
            )

    async def run(self) -> None:
        """Serve, until cancelled; then take the socket away."""
        pause = LOOK_S
        try:
            while True:
                fine = await self._look()
                pause = LOOK_S if fine else min(2 * pause, RETRY_S)
                await self._pause(pause)
        finally:
            await self._stop()

    async def _pause(self, seconds: float) -> None:
        """Wait; a kubelet that is another than before ends that."""
        before, waited = _identity(self._kubelet), 0.0
        while waited < seconds:
            await asyncio.sleep(LOOK_S)
            waited += LOOK_S
            if _identity(self._kubelet) != before:
                return

    async def _look(self) -> bool:
        """Make good what is missing; whether the kubelet knows us, or there is none."""
        kubelet = _identity(self._kubelet)
        if self._server is not None and _identity(self._path) != self._own:
            log.info("the socket was taken away", socket=str(self._path))
            await self._stop()
        if kubelet is None:
            self._told = None
            self._say(f"no kubelet at {self._kubelet} yet")
            return True
        if self._server is None:
            try:
                await self._start()
            except (OSError, RuntimeError, RunlistError) as error:
                self._say(f"cannot listen on {self._path}: {error}")
                return False
        if kubelet == self._told:
            return True
        try:
            await self._register()
        except grpc.aio.AioRpcError as error:
            why = printable(error.details() or error.code().name)[:_MOST_SAID]
            self._say(f"the kubelet does not take {self._resource.name}: {why}")
            return False
        self._told = kubelet
        self._said = ""
        log.info("registered", resource=self._resource.name)
        return True

    async def _start(self) -> None:
        os.close(trusted.open_folder(self._path.parent))  # or others could take its place, and the kubelet's
        self._remove_stale()
        server = grpc.aio.server(
            maximum_concurrent_rpcs=MOST_CALLS,
            options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 4 << 20)],
        )
        api.add_DevicePluginServicer_to_server(self._service, server)
        before = os.umask(0o177)  # nobody is let in before the mode is right
        try:
            server.add_insecure_port(f"unix:{self._path}")
        finally:
            os.umask(before)
        await server.start()
        self._server, self._own, self._told = server, _identity(self._path), None

    def _remove_stale(self) -> None:
        """A socket that nobody serves is that of a plugin which was killed. Raises OSError for one that is in use, and
        for what is no socket.
        """
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(self._path.lstat().st_mode):
                raise OSError(f"{self._path} is not a socket: remove it")
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.settimeout(1)
                try:
                    probe.connect(str(self._path))
                except ConnectionRefusedError:
                    self._path.unlink()
                else:
                    raise OSError("another plugin serves it: end that one first")

    async def _register(self) -> None:
        async with grpc.aio.insecure_channel(f"unix:{self._kubelet}", options=_CHANNEL) as channel:
            await api.RegistrationStub(channel).Register(
                api.RegisterRequest(
                    version=VERSION, endpoint=self._path.name, resource_name=self._resource.name, options=options()
                ),
                timeout=REGISTER_S,
            )

    async def _stop(self) -> None:
        server, self._server, self._told = self._server, None, None
        if server is None:
            return
        other = _identity(self._path) != self._own
        aside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        if other:  # gRPC removes what has the name, which is somebody else's now
            with contextlib.suppress(OSError):
                self._path.rename(aside)
        await server.stop(0)
        if other:
            with contextlib.suppress(OSError):
                aside.rename(self._path)
        else:
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _say(self, text: str) -> None:
        """Once, until it is something else."""
        if text != self._said:
            self._said = text
            log.warning(text, about=self._resource.name)


_CHANNEL = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]


def _identity(path: Path) -> Identity | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_ctime_ns) if stat.S_ISSOCK(found.st_mode) else None
