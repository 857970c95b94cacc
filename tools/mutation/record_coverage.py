"""Started by a .pth file in a workplace: this process' lines count for the test that runs now."""

import os
from pathlib import Path

import coverage

_folder = os.environ.get("MUTATION_RECORD")
if _folder is not None:
    try:
        os.environ["MUTATION_TEST"] = (Path(_folder) / "test").read_text()
    except OSError:
        os.environ["MUTATION_TEST"] = ""
    _started = coverage.process_startup()
    if _started is not None and _started._collector is not None:
        # An exception from a signal handler, such as a watchdog's, would leave its lock taken.
        _started._collector.threading = None
        _started._collector.data_lock = None
