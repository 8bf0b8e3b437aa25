"""What is fast, each beside its plain version."""
