"""The daemon: finds tasks, asks the policy, applies shares, and puts everything back.

`server` speaks with clients; `manager` is what they may ask; `processes` finds and forgets processes (`managed`) with
the help of `watch`; `gpus` has a `scheduler` per GPU that asks the policy; `guard` repairs decisions that would stop
everything; `apply` gets from one set of shares to the next safely; `keeper` is the process that undoes everything when
the daemon dies, `keeping` the daemon's side of it.
"""
