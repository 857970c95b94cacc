"""`runlist top`: the managed tasks, live, with keys to change them.

`feed` talks to the daemon, `actions` are the keys' actions on a task, `rows` chooses and arranges the columns: none of
them knows of a screen. `app` is the screen, and alone uses Textual.
"""
