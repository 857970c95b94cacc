"""Relays: processes that touch what strangers send, so that the daemon need not.

Looking at a descriptor, closing it, or closing a socket in whose queue one waits takes as long as its sender likes: a
TCP socket that lingers, a file that a program serves. So a stranger's connection is handed to the relay of its user,
which passes on frames, and descriptors that can do no harm. A relay that hangs is killed, and costs its own user's
connections only. An exiting process does not linger.
"""
