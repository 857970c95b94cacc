"""Started by a .pth file in a workplace: this process' lines count for the test that runs now."""

import contextlib
import os
import sys
import threading
import time
from pathlib import Path

import coverage


def _keep_writing() -> None:
    while True:
        time.sleep(0.1)
        with contextlib.suppress(Exception):
            _started.save()


_folder = os.environ.get("MUTATION_RECORD")
if _folder is not None:
    try:
        os.environ["MUTATION_TEST"] = (Path(_folder) / "test").read_text()
    except OSError:
        os.environ["MUTATION_TEST"] = ""
    # Named only here: coverage has a .pth file of its own, which would start it before the test is known.
    os.environ["COVERAGE_PROCESS_START"] = os.path.join(_folder, "config")
    _started = coverage.process_startup()
    del os.environ["COVERAGE_PROCESS_START"]
    if _started is not None and _started._collector is not None:
        # An exception from a signal handler, such as a watchdog's, would leave its lock taken.
        _started._collector.threading = None
        _started._collector.data_lock = None
        if any(word.startswith("runlist.daemon.relay") for word in sys.orig_argv):
            # The nursery and its relays are ended by SIGKILL, which leaves no time to write.
            os.register_at_fork(after_in_child=lambda: threading.Thread(target=_keep_writing, daemon=True).start())
