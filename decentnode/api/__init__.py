"""Runs from Python: `decentnode.run`, `resume`, `sweep` and `validate`."""
