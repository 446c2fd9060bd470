"""Resuming a run: which checkpoints, which settings."""
