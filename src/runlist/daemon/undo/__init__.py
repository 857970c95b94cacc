"""What puts everything back when the daemon dies."""
