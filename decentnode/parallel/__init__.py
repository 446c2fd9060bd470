"""For training loops of one's own: a module that is averaged with its neighbors' (docs/library.md)."""
