"""Somebody has the daemon answer to another's name. Names of sockets are those of a network: a stranger has one of its
own, takes a tenant's name there, and what the daemon answers goes to that tenant.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

import runlist
from runlist import tenant as tenants
from runlist.daemon.requests.messages import Effect, Kind, TenantMessage
from tests.fixtures.daemon import needs_root, short_path
from tests.fixtures.ear import Ear, ear
from tests.native.test_library import Program, program, start, tenant

__all__ = ["ear", "program", "short_path", "start", "tenant"]
pytestmark = needs_root
NEW_NETWORK = 0x40000000
FAR = [1, 2, 3, 1 << 29, 1 << 30, 1 << 31, 3 << 30, (1 << 32) - 1]
"""Numbers of messages, of which each begins somewhere."""


def stranger(path: Path, name: bytes) -> None:
    """Say in another network, under that name, that segments begin. Root is who may have one without more."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            assert ctypes.CDLL(None).unshare(NEW_NETWORK) == 0
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.bind(name)
                sock.connect(str(path))
                for number in FAR:
                    sock.send(TenantMessage(Kind.SEGMENT_BEGIN, 0, number, 0).encode())
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0


def forge(ear: Ear, ask: Callable[[], bool]) -> bool:
    """What a tenant, whose segment is in force, is told of that once a stranger had the daemon say otherwise."""
    name = ear.next().message.sender
    assert ask()
    ear.effect = Effect.NOT_IN_FORCE
    stranger(ear.path, name)
    for _ in FAR:
        ear.next()
    ear.do(lambda: None)  # the answers are out
    return ask()


def test_a_stranger_gives_no_program_an_answer(ear: Ear, tenant: Program) -> None:
    assert tenant.do("begin", 2) == 0
    assert forge(ear, lambda: tenant.do("force") == 1)
    ear.effect = Effect.IN_FORCE
    assert [tenant.do("end"), tenant.do("begin", 2), tenant.do("force")] == [0, 0, 1]


def test_nor_one_in_python(ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants, "_tenant", tenants._Tenant())
    monkeypatch.setenv("RUNLIST_MESSAGES", str(ear.path))
    with runlist.segment(2) as segment:
        assert forge(ear, lambda: segment.in_force)
