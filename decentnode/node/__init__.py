"""One node process: the round, its host process, checkpoints, faults."""
