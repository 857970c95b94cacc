"""Whose processes the emulated GPU's context-switch log names, to whom."""

from __future__ import annotations

import ctypes
import json
import os
from contextlib import suppress

import pytest

from tests.emulated import raw
from tests.emulated.raw import START
from tests.emulated.test_switch_log_protocol import FreshGpu, done, job, log_of, start


@pytest.mark.skipif(os.geteuid() != 0, reason="drops root's rights")
@pytest.mark.parametrize(("all_users", "admin"), [(True, False), (False, False), (True, True)])
def test_another_users_processes_are_hidden_from_who_is_no_administrator(
    fresh_gpu: FreshGpu, all_users: bool, admin: bool
) -> None:
    """The driver asks for CAP_SYS_ADMIN, whoever has it: root in a container may not."""
    gpu = fresh_gpu()
    with raw.open_file(gpu.dir) as opened, log_of(gpu) as log, job(gpu) as running:
        go, ready = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                _become_nobody(admin)
                hidden = raw.SwitchLog(opened, all_users=all_users)
                os.write(ready[1], b"1")
                os.read(go[0], 1)
                os.write(ready[1], json.dumps(hidden.read()).encode())
                os._exit(0)
            os._exit(1)
        os.read(ready[0], 1)
        start(running, 1)
        done(running)
        os.write(go[1], b"1")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        (seen,) = log.read()
        assert seen.pid == running.pid
        answer = json.loads(os.read(ready[0], 4096))
        for end in (*go, *ready):
            os.close(end)
        told = [START, seen.sequence, seen.context, seen.pid, seen.time] if admin else [START, 0, 0, 0, seen.time]
        assert answer == ([told] if all_users else [])


def _become_nobody(admin: bool) -> None:
    """With CAP_SYS_ADMIN alone, or without any capability."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(8, int(admin), 0, 0, 0) == 0  # PR_SET_KEEPCAPS
    os.setresuid(65534, 65534, 65534)
    if admin:
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        assert libc.capset(header, (ctypes.c_uint32 * 6)(1 << 21, 1 << 21, 0, 0, 0, 0)) == 0
