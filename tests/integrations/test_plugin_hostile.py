"""`runlist plugin` beside a kubelet that is broken, callers who flood it, and strangers in its folder."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import pytest

from runlist.integrations.kubernetes import deviceplugin_autogen as api
from runlist.log_limit import BURST
from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import PATIENCE_S, wait_for
from tests.fixtures.kubelet import Kubelet, Refused
from tests.fixtures.plugin import SHARE, Plugin

pytestmark = pytest.mark.skipif(ON_NVIDIA, reason="GPUs are made, hurt and taken away")

MOST_KIB = 512 << 10
"""Of memory, whatever callers do."""
FLOOD_S = 5.0
"""How long one goes on where the plugin is slow to read it."""


def _kibibytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def _serves(kubelet: Kubelet) -> bool:
    """Whether a container gets its share; what a flood took the room of is asked again, as the kubelet's pods are."""
    try:
        kubelet.remove(kubelet.admit("pod", {SHARE: 10}))
    except (Refused, grpc.RpcError):
        return False
    return True


def test_what_a_kubelet_says_is_one_short_line(kubelet: Kubelet, start: Callable[..., Plugin]) -> None:
    kubelet.refuse = "no\nroom\x1b[2J\x1b]0;owned\x07" * 200
    plugin = start()
    wait_for(lambda: "does not take" in plugin.log, "the refusal to be said")
    (line,) = [line for line in plugin.log.splitlines() if "room" in line]
    assert line.isprintable()
    assert len(line) < 500
    kubelet.refuse = ""
    wait_for(lambda: _serves(kubelet), "the kubelet to take it")


def test_a_folder_in_which_others_write_is_not_served(kubelet: Kubelet, start: Callable[..., Plugin]) -> None:
    """They could put sockets of their own in the place of the plugin's, and of the kubelet's."""
    kubelet.folder.chmod(0o777)
    plugin = start()
    wait_for(lambda: "others can write there" in plugin.log, "the folder to be refused")
    assert not kubelet.registrations
    assert [path.name for path in kubelet.folder.iterdir()] == ["kubelet.sock"]
    kubelet.folder.chmod(0o755)
    wait_for(lambda: kubelet.registrations == 1, "it to register")
    assert plugin.log.count("others can write there") == 1


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 200 OK\r\n\r\n" * 100, bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]) * 1000, bytes(range(256)) * 100],
)
def test_a_kubelet_that_speaks_something_else_is_followed_by_another(
    folder: Path, start: Callable[..., Plugin], answer: bytes
) -> None:
    kubelet = Kubelet(folder)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(kubelet.folder / "kubelet.sock"))
        listener.listen()
        listener.settimeout(PATIENCE_S)
        plugin = start()
        for _ in range(2):
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.sendall(answer)
        assert plugin.process.poll() is None
    with kubelet:
        wait_for(lambda: SHARE in kubelet.plugins, "it to register with the new one")
        assert _serves(kubelet)


def test_thousands_who_ask_nonsense_at_once_fill_no_log(kubelet: Kubelet, start: Callable[..., Plugin]) -> None:
    plugin = start()
    stub = kubelet.plugin(SHARE).stub
    for _ in range(10):
        asked = [
            stub.Allocate.future(
                api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=[f"GPU-{n}::p00"])])
            )
            for n in range(200)
        ]
        assert all(isinstance(one.exception(), grpc.RpcError) for one in asked)
    wait_for(lambda: _serves(kubelet), "it to serve others")
    assert BURST / 2 < plugin.log.count("an allocation was refused") < 2 * BURST
    wait_for(lambda: "lines were left out here" in plugin.log, "what was left out to be counted")


def test_a_request_for_a_million_containers_keeps_nobody_waiting(
    kubelet: Kubelet, start: Callable[..., Plugin]
) -> None:
    """Each would cost the work for one, and its place in the answer."""
    start()
    stub = kubelet.plugin(SHARE).stub
    for ask, request in (
        (stub.GetPreferredAllocation, api.PreferredAllocationRequest()),
        (stub.Allocate, api.AllocateRequest()),
    ):
        request.ParseFromString(b"\x0a\x00" * 1_000_000)
        with pytest.raises(grpc.RpcError) as caught:
            ask(request, timeout=PATIENCE_S)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "1,000,000 containers at once" in caught.value.details()
    assert _serves(kubelet)


# -- HTTP/2 by hand -----------------------------------------------------------------------------------

_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_PATH = b"/v1beta1.DevicePlugin/ListAndWatch"
_HEADERS = b"\x83\x86\x04" + bytes([len(_PATH)]) + _PATH + b"\x41\x01a\x5f\x10application/grpc\x40\x02te\x08trailers"
_DATA, _OPEN, _RESET, _SETTINGS, _PING, _WINDOW, _MORE = 0, 1, 3, 4, 6, 8, 9


def _frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    return struct.pack(">I", len(content))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + content


_FLOODS: dict[str, Callable[[int], bytes]] = {
    "settings": lambda _: _frame(_SETTINGS, 0, 0, struct.pack(">HI", 3, 100)),
    "pings": lambda _: _frame(_PING, 0, 0, b"12345678"),
    "resets": lambda n: _frame(_OPEN, 4, 2 * n + 1, _HEADERS) + _frame(_RESET, 0, 2 * n + 1, struct.pack(">I", 8)),
    "streams": lambda n: _frame(_OPEN, 4, 2 * n + 1, _HEADERS),
    "headers": lambda n: _frame(_MORE, 0, 1, b"\x40\x01a\x7f\x80\x07" + bytes(1023)) if n else _frame(_OPEN, 0, 1),
    "windows": lambda _: _frame(_WINDOW, 0, 0, struct.pack(">I", 1)),
    "nothing": lambda n: _frame(_DATA, 0, 1) if n else _frame(_OPEN, 4, 1, _HEADERS),
    "a huge message": lambda n: _frame(_DATA, 0, 1, bytes([0, 255]) * 2500) if n else _frame(_OPEN, 4, 1, _HEADERS),
}


def test_floods_and_silent_connections_cost_little_memory_and_keep_nobody_out(
    kubelet: Kubelet, start: Callable[..., Plugin]
) -> None:
    plugin = start()
    path = str(kubelet.folder / kubelet.plugin(SHARE).request.endpoint)
    with ExitStack() as stack:

        def connected() -> socket.socket:
            one = stack.enter_context(socket.socket(socket.AF_UNIX))
            one.settimeout(0.5)
            one.connect(path)
            return one

        for number in range(300):
            with suppress(OSError):
                connected().sendall((_HELLO + os.urandom(100))[: number % 60])
        for name, frame in _FLOODS.items():
            with suppress(OSError), connected() as flooding:  # it hangs up on most
                flooding.sendall(_HELLO + _frame(_SETTINGS, 0, 0))
                until = time.monotonic() + FLOOD_S
                for first in range(0, 20_000, 50):
                    if time.monotonic() > until:
                        break
                    flooding.sendall(b"".join(map(frame, range(first, first + 50))))
            wait_for(lambda: _serves(kubelet), f"others to be served after many {name}")
        assert plugin.process.poll() is None
        assert _kibibytes(plugin.process.pid) < MOST_KIB
    assert plugin.end() == 0
    assert len(plugin.log) < 4096
