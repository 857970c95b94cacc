"""Imported by a worker of Ray, this is `runlist.ray.setup`: name it in RAY_preload_python_modules of `ray start`."""

from runlist.integrations.ray.hook import setup

setup()
