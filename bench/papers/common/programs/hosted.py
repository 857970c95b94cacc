"""Several programs as threads of one process, and so in one context of the GPU: `hosted 'NAME=MODULE [OPTION…]' …`.

Each argument is a program with its options, in one word as a shell would read it. Lines are those of `serving.py`, with
the name of the program as `task`; where there is one program, a request needs none. The programs are made one after the
other; then each serves its own requests.

`--operations RULE` before them: each is a client of Runlist's scheduler of operations, the first the one of high
priority. A line `{"rule": NAME}` is another rule from then on; each program answers it by what was counted of it so
far: `{"task": NAME, "counted": {…}}`.
"""

from __future__ import annotations

import json
import os
import queue
import runpy
import shlex
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

from bench.papers.common.programs import serving
from runlist import operations
from runlist.errors import RunlistError, UsageError
from runlist.workloads import options as workload_options

_OPERATIONS = "--operations"
_SWITCH_S = 50e-6
"""Python lets another thread go on after so long; its own 5 ms would be longer than a request."""


class Guest:
    """A program in a thread."""

    def __init__(self, text: str, say: serving.Say, scheduler: operations.Scheduler | None, client: int) -> None:
        self.name, _, rest = text.partition("=")
        self._module, *self._words = shlex.split(rest)
        self._say_line = say
        self._scheduler, self._client = scheduler, client
        self.inbox: queue.SimpleQueue[serving.Request | None] = queue.SimpleQueue()
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self._work, name=self.name)

    def _requests(self) -> Iterator[serving.Request]:
        while (request := self.inbox.get()) is not None:
            yield request

    def _say(self, line: Mapping[str, Any]) -> None:
        self._say_line({"task": self.name, **line})
        if "ready" in line:
            self.ready.set()

    def rule(self, name: str) -> None:
        """Another rule. Raises RunlistError."""
        if self._scheduler is None:
            raise UsageError("these programs are no clients: start them with --operations")
        self._scheduler.use(name)
        counted = asdict(self._scheduler.counters(self._client))
        del counted["latency_ns"]  # no count
        self._say_line({"task": self.name, "counted": counted})

    def _work(self) -> None:
        try:
            hosted = serving.Hosted(self._words, self._requests(), self._say)
            as_client = nullcontext() if self._scheduler is None else self._scheduler.client(self._client)
            with as_client, serving.hosting(hosted):
                runpy.run_module(self._module, run_name="__main__")
        except BaseException as error:
            if not (isinstance(error, SystemExit) and not error.code):
                print(f"{self.name}: {str(error).splitlines()[0] if str(error) else error!r}", file=sys.stderr)
                os._exit(1)


def _body() -> None:
    say = serving.apart()
    sys.setswitchinterval(_SWITCH_S)
    texts = sys.argv[1:]
    scheduler = None
    if texts[0] == _OPERATIONS:
        rule, *texts = texts[1:]
        try:
            scheduler = operations.start(len(texts), rule)
        except RunlistError as error:
            sys.exit(f"hosted: {error}")
    made = (Guest(text, say, scheduler, index) for index, text in enumerate(texts))
    guests = {guest.name: guest for guest in made}
    for guest in guests.values():
        guest.thread.start()
        guest.ready.wait()
    rest = b""
    while more := os.read(sys.stdin.fileno(), 1 << 16):
        *whole, rest = (rest + more).split(b"\n")
        for line in filter(bytes.strip, whole):
            fields = json.loads(line)
            if "rule" in fields:
                for guest in guests.values():
                    guest.rule(fields["rule"])
                continue
            guests[fields.get("task", next(iter(guests)))].inbox.put(serving.request_of(fields))
    for guest in guests.values():
        guest.inbox.put(None)
        guest.thread.join()


if __name__ == "__main__":
    workload_options.main(_body, "hosted")
