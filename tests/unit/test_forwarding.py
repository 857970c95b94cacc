"""Signals that come before there is a command to have them."""

from __future__ import annotations

import subprocess
import sys

EARLY = """
import os, signal, subprocess, sys
from runlist.cli.forwarding import Forwarding

forwarding = Forwarding()
os.kill(os.getpid(), signal.SIGUSR1)
os.kill(os.getpid(), signal.SIGTERM)
WAITS = '''
import signal
both = [signal.SIGUSR1, signal.SIGTERM]
signal.pthread_sigmask(signal.SIG_BLOCK, both)
print("ready", flush=True)
print(sorted(signal.sigwait(both).name for _ in both))
'''
command = subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True)
assert command.stdout.readline() == "ready\\n"
forwarding.to(command.pid)
print(command.communicate(timeout=60)[0], end="")
forwarding.close()
"""


def test_the_command_has_those_that_came_before_it() -> None:
    done = subprocess.run([sys.executable, "-c", EARLY], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("['SIGTERM', 'SIGUSR1']\n", "")
