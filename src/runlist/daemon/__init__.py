"""The daemon: finds tasks, asks the policy, applies shares, and puts everything back.

`server` speaks with clients; `manager` knows processes and tasks; `scheduler` (one per GPU) asks the policy; `apply`
gets from one set of shares to the next safely; `guard` repairs decisions that would stop everything; `watch` notices
new processes and ends of old ones; `keeper` is the process that undoes everything when the daemon dies.
"""
