"""The loop of the asynchronous time model (docs/asynchronous.md)."""
