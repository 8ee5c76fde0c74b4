"""The command line and what stands behind each command."""
