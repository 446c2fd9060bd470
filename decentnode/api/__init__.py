"""Runs from Python: `decentnode.run`, `resume`, `sweep`, `validate` and `calibrate`."""
