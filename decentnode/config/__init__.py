"""YAML to settings: every error with file, line and key."""
