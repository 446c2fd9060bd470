"""A wrapper for your own training loop: it averages a module with the neighbors' (docs/library.md)."""
