"""The place of one of several processes that were started together, from its environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from decentnode.errors import BadInput

STARTERS = {
    "decentnode launch": (
        "DECENTNODE_RANK", "DECENTNODE_SIZE", "DECENTNODE_LOCAL_RANK", "DECENTNODE_LOCAL_SIZE"
    ),
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
    "Open MPI": (
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "MPICH": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
}  # fmt: skip
"""By starter the variables of rank, number of ranks, rank on the machine, and number of ranks there."""


@dataclass(frozen=True)
class RankPlace:
    """One rank among all, and on its machine."""

    starter: str
    rank: int
    size: int
    local_rank: int
    local_size: int

    @property
    def machine(self) -> int:
        """The index of its machine; all machines have equally many ranks."""
        return self.rank // self.local_size

    @property
    def machines(self) -> int:
        """The number of machines."""
        return self.size // self.local_size


def find_place(environ: Mapping[str, str] = os.environ) -> RankPlace | None:
    """Returns the place of this process; None where nobody says one. Raises BadInput for what cannot be."""
    for starter, names in STARTERS.items():
        if not all(environ.get(name) for name in names[:3]):
            continue
        texts = [environ.get(name) or environ[names[1]] for name in names]
        # Slurm writes the tasks of each machine, such as 2(x3).
        texts[3] = texts[3].partition("(")[0].partition(",")[0]
        if not all(text.isascii() and text.isdigit() for text in texts):
            raise BadInput(f"{starter} sets {', '.join(map('='.join, zip(names, texts, strict=True)))}")
        rank, size, local_rank, local_size = map(int, texts)
        if not (rank < size and local_rank < local_size <= size) or size % local_size:
            raise BadInput(
                f"{starter} sets rank {rank} of {size}, {local_rank} of {local_size} on its machine; start "
                "equally many on every machine"
            )
        return RankPlace(starter, rank, size, local_rank, local_size)
    return None
