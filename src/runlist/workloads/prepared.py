"""Requests that are prepared on the host before they need the GPU, once their data came in."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable


def prepared_request(
    request: Callable[[float], float], ahead_s: float, *, hints: bool = False
) -> Callable[[float], float]:
    """A request for which the host works `ahead_s` before its arrival, which is when it needs the GPU: from the moment
    at which a byte comes in over a connection, or with `hints` says so.
    """
    if hints:
        from runlist.tenant import hint

        def begin() -> None:
            hint(ahead_s)

    else:
        listener = socket.create_server(("127.0.0.1", 0))
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def begin() -> None:
            client.sendall(b"r")
            server.recv(64)

    def prepared(arrival: float) -> float:
        until = max(arrival, time.perf_counter() + ahead_s)
        begin()
        while time.perf_counter() < until:
            pass
        return min(request(arrival), until)

    return prepared
