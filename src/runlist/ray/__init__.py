"""Ray's fractions of GPUs made true: `ray.init(runtime_env=runlist.ray.runtime_env())`.

`setup` is for Ray's `worker_process_setup_hook`. Without a word in scripts: `RAY_RUNTIME_ENV_HOOK=runlist.ray.extended`
where they are started, or `RAY_preload_python_modules=runlist.ray.everywhere` where a node is (`ray start`).
"""

from runlist.integrations.ray.environment import extended, runtime_env
from runlist.integrations.ray.hook import setup

__all__ = ["extended", "runtime_env", "setup"]
