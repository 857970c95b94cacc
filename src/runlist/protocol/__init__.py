"""What is exchanged with the driver, with programs and between our own, generated from protocol/*.toml."""
