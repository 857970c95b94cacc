"""The daemon as a service of systemd: its units, and where they go."""
