"""JupyterHub with systemdspawner, as docs/jupyterhub.md has it, on a machine that systemd booted: a user's notebook is
in a unit, which a rule names.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ON_NVIDIA
from tests.fixtures.booted import GPU, Service, served
from tests.fixtures.daemon import ROOT, needs_root, short_path, wait_for
from tests.fixtures.node import needs_modules, needs_programs

__all__ = ["short_path"]

pytestmark = [
    needs_root,
    needs_programs("systemd", "unshare"),
    needs_modules("jupyterhub", "systemdspawner", "jupyter_server", "ipykernel"),
    pytest.mark.skipif(ON_NVIDIA, reason="a machine in namespaces has no device of the driver's"),
]

USER = "alice"
RULES = """
[[rule]]
unit = "jupyter-*.service"
set = { weight = 30, group = "cgroup", memory = "1G" }
"""
HUB = """
from jupyterhub.proxy import Proxy


class Routes(Proxy):
    '''Nobody comes from outside: the routes are all that is wanted.'''

    routes = {}

    async def add_route(self, routespec, target, data):
        self.routes[routespec] = dict(routespec=routespec, target=target, data=data)
        import json
        json.dump({path: route["target"] for path, route in self.routes.items()}, open("/run/hub/routes", "w"))

    async def delete_route(self, routespec):
        self.routes.pop(routespec, None)

    async def get_all_routes(self):
        return dict(self.routes)


c.JupyterHub.proxy_class = Routes
c.Routes.should_start = False
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allowed_users = {USER}
c.JupyterHub.hub_bind_url = "http://127.0.0.1:8081"
c.JupyterHub.services = [{"name": "test", "api_token": "secret-of-the-test"}]
c.JupyterHub.load_roles = [
    {"name": "test", "services": ["test"], "scopes": ["admin:users", "admin:servers", "access:servers"]}
]
c.JupyterHub.spawner_class = "systemd"
c.SystemdSpawner.unit_name_template = "jupyter-{USERNAME}"
c.Spawner.cmd = [RUNLIST, "run", "--", SINGLE_USER]
c.Spawner.environment = ENVIRONMENT


def before(spawner):
    spawner.unit_extra_properties = {"CPUWeight": "300"}


c.Spawner.pre_spawn_hook = before
"""
KERNEL = """
c.InteractiveShellApp.extensions = ["runlist.integrations.jupyter"]
c.Runlist.active = "normal"
c.Runlist.idle = "batch"
c.Runlist.after_s = 2
c.InteractiveShellApp.exec_lines = ["import gpu_work"]
"""
WORK = """
import threading
from runlist.workloads.accumulator import Accumulator
from runlist.workloads.gpu import Gpu


def compute():
    gpu = Gpu(0, blocking=True)
    work = Accumulator(gpu, blocks=8)
    rounds = work.rounds_for(2000)
    while True:
        work.launch(rounds)
        work.synchronize()


threading.Thread(target=compute, daemon=True).start()
"""
ASK = """
import sys, urllib.request
method, url = sys.argv[1:]
request = urllib.request.Request(url, b"{}" if method == "POST" else None, method=method)
request.add_header("Authorization", "token secret-of-the-test")
request.add_header("Content-Type", "application/json")
print(urllib.request.urlopen(request, timeout=30).read().decode())
"""


class Hub:
    """The hub of that machine, and a user of it."""

    def __init__(self, service: Service, folder: Path) -> None:
        self.service, self.machine = service, service.machine
        for path in {*ROOT.parents, *Path(sys.base_prefix).parents}:  # an ordinary user's server has to reach them
            self.machine.run("chmod", "o+x", str(path))
        folder.chmod(0o755)
        (folder / "gpu_work.py").write_text(WORK)
        self.machine.write("/etc/ipython/ipython_kernel_config.py", KERNEL)
        values = {
            "USER": USER,
            "RUNLIST": f"{sys.prefix}/bin/runlist",
            "SINGLE_USER": f"{sys.prefix}/bin/jupyterhub-singleuser",
            "ENVIRONMENT": {**service.environment, "PYTHONPATH": str(folder)},
        }
        self.machine.write("/run/hub/config.py", "".join(f"{key} = {value!r}\n" for key, value in values.items()) + HUB)
        self.machine.write("/run/hub/ask.py", ASK)
        self.machine.run(
            "systemd-run", "--quiet", "--unit=hub", "--working-directory=/run/hub",
            f"--setenv=PATH={sys.prefix}/bin:{os.defpath}", f"{sys.prefix}/bin/jupyterhub", "-f", "/run/hub/config.py",
        )  # fmt: skip
        wait_for(lambda: self._answers("GET", "http://127.0.0.1:8081/hub/api/"), "the hub", 60)

    def _answers(self, method: str, url: str) -> bool:
        return self.machine.run(sys.executable, "/run/hub/ask.py", method, url, check=False).returncode == 0

    def ask(self, method: str, url: str) -> Any:
        said = self.machine.run(sys.executable, "/run/hub/ask.py", method, url).stdout.strip()
        return json.loads(said) if said else None

    @property
    def server(self) -> str:
        """Where the user's server answers."""
        routes = json.loads(self.machine.run("cat", "/run/hub/routes").stdout)
        return f"{routes[f'/user/{USER}/']}/user/{USER}"


@pytest.fixture
def hub(short_path: Path) -> Iterator[Hub]:
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(served(short_path, RULES, "--group", "users"))
        service.machine.run("chmod", "711", GPU)
        service.machine.run("useradd", "--create-home", "--gid", "users", USER)
        yield Hub(service, short_path)


def test_a_users_notebook_has_the_rule_of_its_unit_and_is_batch_while_idle(hub: Hub) -> None:
    hub.ask("POST", f"http://127.0.0.1:8081/hub/api/users/{USER}/server")
    wait_for(
        lambda: f"/user/{USER}/" in hub.machine.run("cat", "/run/hub/routes", check=False).stdout, "the server", 60
    )
    kernel = hub.ask("POST", f"{hub.server}/api/kernels")
    assert kernel["name"] == "python3"
    wait_for(hub.service.tasks, "the kernel's work to be managed", 60)

    def task() -> dict[str, Any]:
        (one,) = hub.service.tasks()
        return one

    found = task()
    assert found["cgroup"] == f"/system.slice/jupyter-{USER}.service"
    assert found["rule"].startswith("rules.toml")
    assert (found["weight"], found["memory_limit_bytes"]) == (30, 1 << 30)
    wait_for(lambda: task()["task_class"] == "batch", "the idle notebook to be batch")
    hub.ask("DELETE", f"http://127.0.0.1:8081/hub/api/users/{USER}/server")
    wait_for(lambda: not hub.service.tasks(), "nothing to be left of it")
