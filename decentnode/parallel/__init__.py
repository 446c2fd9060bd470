"""For your own training loop: a module that is averaged with its neighbors' modules (docs/library.md)."""
