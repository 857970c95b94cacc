"""What users and tenants ask of the daemon, and what they are shown."""
