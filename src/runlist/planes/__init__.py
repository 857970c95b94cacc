"""Planes: the ways in which Runlist reaches GPUs and the processes on them.

`interface` says what the rest of Runlist may know of a plane; `registry` finds one by its name.
"""
