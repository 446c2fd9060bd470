"""What a sweep records of a run beside the run's own files."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from decentnode.errors import UNDECODABLE
from decentnode.results.reader import SCHEMA
from decentnode.results.records import write_atomically

FILE = "study.json"
"""In the run directory, once the run has ended."""


class RunEntry(msgspec.Struct):
    """The content of a run's `study.json`."""

    study: str
    variant: str
    axes: Mapping[str, str]
    """The label of the variant on each axis."""
    seed: int
    alone: bool
    """Whether no other run of the sweep had the machine meanwhile; otherwise its seconds mean little."""
    wall_seconds: float
    """Of the whole process, with start and end."""
    cpu_seconds: float
    """Processor time of all its processes."""
    exit_code: int

    def save(self, run_dir: Path) -> None:
        """Writes the file; raises OSError."""
        write_atomically(run_dir / FILE, {"schema": SCHEMA, **msgspec.to_builtins(self)})


def read_entry(run_dir: Path) -> RunEntry | None:
    """The entry of a run; None where there is none, or it cannot be read."""
    try:
        return msgspec.json.decode((run_dir / FILE).read_bytes(), type=RunEntry)
    except (OSError, *UNDECODABLE):
        return None
