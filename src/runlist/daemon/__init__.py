"""The daemon: finds tasks, asks the policy, applies shares, and puts everything back.

`requests` serves clients and hears tenants; `placement` has rules and limits; `tree` finds, adopts and forgets
processes, and `tasks` says what is known of each; `gpu` has a scheduler for each GPU; `memory` has limits and who holds
how much; `undo` has the keeper, which puts everything back when the daemon dies. `compose` puts them together.
"""
