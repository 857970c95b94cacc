"""A latency program over HTTP: this process is the client, which starts the server and sends one request at a time.

A request that arrives while another is under way waits at the client; its response time counts from its arrival all the
same. The server answers one after the other, so where they wait makes no difference.
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import time

from bench.frameworks import served
from runlist.workloads.lines import Lines

START_S, ANSWER_S = 120.0, 25.0


def _client(arguments: argparse.Namespace) -> None:
    words = [sys.executable, "-m", "bench.frameworks.http_server", "--device", arguments.device]
    words += ["--gpu-time"] if arguments.gpu_time else []
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        try:
            _serve(server, arguments)
        finally:
            server.kill()


def _serve(server: subprocess.Popen[bytes], arguments: argparse.Namespace) -> None:
    assert server.stdout is not None
    try:
        line = Lines(server.stdout.fileno()).next(START_S)
    except TimeoutError:
        raise RuntimeError(f"the server has not begun in {START_S:g} s") from None
    if line is None:
        server.wait()
        sys.exit(server.returncode or 1)  # it has said why
    connection = http.client.HTTPConnection("127.0.0.1", json.loads(line)["port"], timeout=ANSWER_S)

    def get(path: str) -> bytes:
        connection.request("GET", path)
        with connection.getresponse() as response:
            body = response.read()
            if response.status != http.HTTPStatus.OK:
                raise RuntimeError(f"the server answered {response.status} {response.reason}")
            return body

    def request(_arrival: float) -> float:
        began = time.perf_counter()
        get("/step")
        return began

    def gpu_time() -> float | None:
        seconds: float | None = json.loads(get("/gpu-time"))
        return seconds

    for _ in range(5):
        request(0.0)
    served.requests(request, gpu_time if arguments.gpu_time else None, lambda: get("/step") == b"done")


if __name__ == "__main__":
    served.serve({"http": _client}, __doc__)
