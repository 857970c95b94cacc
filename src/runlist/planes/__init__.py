"""Planes: the ways in which Runlist reaches GPUs and the processes on them.

`interface` is all that the rest of Runlist knows of a plane; `registry` finds one by its name.
"""
