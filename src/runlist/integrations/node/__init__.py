"""`runlist node`: what a node's container runtime knows of its pods, as rules of the daemon.

A container's annotations become a drop-in (docs/rules.md) that names it by its id, so that the daemon knows who a
process is, and what it may have, for what runs already as well as for what comes. docs/kubernetes.md describes it.
"""
