"""Where Runlist docks: a folder for each host. All of it is a client of the daemon, in an extra of the package."""
