"""A node's state on disk."""
