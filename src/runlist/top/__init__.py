"""`runlist top`: the managed tasks, live, with keys to change them.

`feed` talks to the daemon, `actions` are what keys do to a task, `rows` chooses and arranges what is shown: none of
them knows of a screen. `app` is the screen, and alone uses Textual.
"""
