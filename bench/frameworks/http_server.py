"""A service of a decode step as a CUDA graph: aiohttp, on a port of the loopback device that it prints.

`/step` does one step, in a thread as servers do; `/gpu-time` tells the GPU time of one in seconds, or null. It ends
when its standard input does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.frameworks import served
from bench.frameworks.decode import Decoder
from bench.frameworks.torch_tools import captured, gpu_time, torch_of, waiter
from runlist.workloads import options


def _until_the_end_of_input() -> None:
    sys.stdin.read()
    os._exit(0)


def _body() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--gpu-time", action="store_true")
    arguments = parser.parse_args()
    served.apart()
    threading.Thread(target=_until_the_end_of_input, daemon=True).start()
    web = served.load("aiohttp.web")
    torch = torch_of(arguments.device)
    wait = waiter(torch, arguments.device)
    replay, _ = captured(torch, arguments.device, Decoder(torch, arguments.device).step)
    worker = ThreadPoolExecutor(1)
    measured = gpu_time(torch, arguments, replay)

    def step() -> None:
        replay()
        wait()

    async def in_thread(work: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(worker, work)

    async def answer(_request: Any) -> Any:
        await in_thread(step)
        return web.Response(text="done")

    async def tell(_request: Any) -> Any:
        return web.json_response(None if measured is None else await in_thread(measured))

    async def serve() -> None:
        application = web.Application()
        application.router.add_get("/step", answer)
        application.router.add_get("/gpu-time", tell)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(json.dumps({"port": runner.addresses[0][1]}), flush=True)
        await asyncio.Event().wait()

    asyncio.run(serve())


if __name__ == "__main__":
    options.main(_body, "http_server")
