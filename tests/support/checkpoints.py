"""Checkpoints as a process with one node writes them."""

from decentnode.node.checkpoint.checkpoint_file import CheckpointFile


def save(directory, rank, round, state, stamp):
    """Saves a state of a node; raises OSError, UnknownKind or BadTensors."""
    problems = []
    CheckpointFile([rank]).add(directory, rank, round, state, stamp, problems.append)
    if problems != [""]:
        raise OSError(*problems)
