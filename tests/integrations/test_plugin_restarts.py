"""Restarts of kubelet and plugin, sockets that vanish, and a kubelet that is not there or refuses."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import PATIENCE_S, wait_for
from tests.fixtures.effort import TIMES
from tests.fixtures.kubelet import Kubelet, gpus_of
from tests.fixtures.plugin import SHARE, Plugin, served

pytestmark = pytest.mark.skipif(ON_NVIDIA, reason="GPUs are made, hurt and taken away")

RESTARTS = 15 if TIMES == 1 else 50


def test_restarts_of_the_kubelet(kubelet: Kubelet, folder: Path) -> None:
    with served(kubelet.folder):
        for number in range(RESTARTS):
            assert len(kubelet.plugin(SHARE).healthy) == 200
            if number % (RESTARTS // 5) == 0:
                kubelet.admit(f"pod-{number}", {SHARE: 10})
            kubelet.restart()
        assert len(kubelet.plugin(SHARE).healthy) == 200
        assert len(kubelet.containers) == 5
        assert len(gpus_of([text for one in kubelet.containers for text in one.ids[SHARE]])) == 1
        assert kubelet.registrations == RESTARTS + 1
    assert [path.name for path in kubelet.folder.iterdir()] == ["kubelet.sock"]


def test_restarts_of_the_plugin(kubelet: Kubelet) -> None:
    before = threading.active_count()
    for number in range(RESTARTS):
        with served(kubelet.folder):
            wait_for(lambda number=number: kubelet.registrations == number + 1, "it to register")
            plugin = kubelet.plugin(SHARE)
            assert len(plugin.healthy) == 200
        assert plugin.gone.wait(PATIENCE_S)
    assert threading.active_count() < before + 4 * RESTARTS


def test_a_plugin_that_was_killed_is_followed_by_another(kubelet: Kubelet, start: Callable[..., Plugin]) -> None:
    for number in range(3):
        plugin = start()
        wait_for(lambda number=number: kubelet.registrations == number + 1, "it to register")
        assert len(kubelet.plugin(SHARE).healthy) == 200
        kubelet.admit(f"pod-{number}", {SHARE: 10})
        assert plugin.end(signal.SIGKILL) == -signal.SIGKILL
    assert len(gpus_of([text for one in kubelet.containers for text in one.ids[SHARE]])) == 1


def test_a_second_plugin_leaves_the_first_alone(kubelet: Kubelet, start: Callable[..., Plugin]) -> None:
    start()
    kubelet.plugin(SHARE)
    second = start()
    wait_for(lambda: "another plugin serves it" in second.log, "the second to say so")
    assert kubelet.registrations == 1
    assert kubelet.admit("pod", {SHARE: 10})
    assert second.end() == 0
    assert kubelet.admit("next", {SHARE: 10})


def test_a_socket_that_is_taken_away_is_made_again(kubelet: Kubelet) -> None:
    with served(kubelet.folder):
        path = kubelet.folder / kubelet.plugin(SHARE).request.endpoint
        for number in range(5):
            path.unlink()
            wait_for(lambda number=number: kubelet.registrations == number + 2, "it to register again")
            assert len(kubelet.plugin(SHARE).healthy) == 200
        path.unlink()
        path.write_text("not a socket")
        time.sleep(1)
        assert path.read_text() == "not a socket"
        path.unlink()
        wait_for(lambda: kubelet.registrations == 7, "it to register again")


def test_a_kubelet_that_is_not_there_yet_is_waited_for(folder: Path) -> None:
    kubelet = Kubelet(folder)
    kubelet.folder.rmdir()
    with served(kubelet.folder):
        time.sleep(0.5)
        kubelet.folder.mkdir()
        with kubelet:
            assert len(kubelet.plugin(SHARE).healthy) == 200
    assert not list(kubelet.folder.iterdir())


def test_a_kubelet_that_refuses_is_asked_again(kubelet: Kubelet, capfd: pytest.CaptureFixture[str]) -> None:
    kubelet.refuse = "no room for you\nat all"
    with served(kubelet.folder):
        time.sleep(1.5)
        assert not kubelet.plugins
        kubelet.refuse = ""
        assert len(kubelet.plugin(SHARE).healthy) == 200
    assert capfd.readouterr().out.count("no room for you") == 1  # said once
