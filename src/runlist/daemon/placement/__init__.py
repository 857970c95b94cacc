"""The settings and limits of a process that appears, from the rules and from its user."""
