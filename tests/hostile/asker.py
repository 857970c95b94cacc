"""Somebody who asks the daemon for things, as a user of its own: `python -m tests.hostile.asker UID GROUP`.

Each line on standard input is a JSON list of a method of `runlist.client.Client`, its arguments, and its arguments by
name. It is answered by one JSON line: `{"value": …}`, `{"refused": message, "code": exit code}`, or `{"gone": message}`
when the daemon did not answer or there is none. `seconds` is how long that took. The method `hang_up` closes the
connection, which is otherwise kept.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import msgspec

from runlist.client import Client, DaemonGone
from runlist.errors import NoTargetError, RunlistError


class Asker:
    """The connection, and what is asked by it."""

    def __init__(self) -> None:
        self._client: Client | None = None

    def ask(self, method: str, arguments: list[Any], named: dict[str, Any]) -> dict[str, Any]:
        if method == "hang_up":
            self._hang_up()
            return {"value": None}
        if self._client is None:
            try:
                self._client = Client.open(patience_s=60)
            except (DaemonGone, NoTargetError) as error:
                return {"gone": str(error)}
        try:
            return {"value": msgspec.to_builtins(getattr(self._client, method)(*arguments, **named))}
        except DaemonGone as error:
            self._hang_up()
            return {"gone": str(error)}
        except RunlistError as error:
            return {"refused": str(error), "code": int(error.exit_code)}

    def _hang_up(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def main() -> None:
    uid, group = map(int, sys.argv[1:])
    asker = Asker()
    asker.ask("ps", [], {})  # all that is loaded on the way is loaded while it may be read
    asker.ask("hang_up", [], {})
    os.setgroups([group])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    print(json.dumps({"uid": os.getuid()}), flush=True)
    for line in sys.stdin:
        began = time.monotonic()
        answer = asker.ask(*json.loads(line))
        print(json.dumps({**answer, "seconds": time.monotonic() - began}), flush=True)


if __name__ == "__main__":
    main()
