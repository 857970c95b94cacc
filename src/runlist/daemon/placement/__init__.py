"""What a process gets when it appears: rules, limits, and what its user asked for."""
