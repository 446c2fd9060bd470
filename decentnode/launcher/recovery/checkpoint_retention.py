"""Which checkpoints there are, which round all ranks have, and which ones may go."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from decentnode.errors import StartError
from decentnode.node.checkpoint import store as checkpoint

MOST_NAMED = 5


class CheckpointRetention:
    """What a launcher knows of checkpoints, from the reports of the nodes; deletes those of its own ranks."""

    def __init__(self, directory: Path, ranks: Iterable[int], local: Iterable[int]) -> None:
        self.settled = -1
        """Every rank that is still there has a checkpoint of this round or of a later one."""
        self.kept = -1
        """The newest round but one that all of these have; -1: none. Those from there on stay."""
        self.problem = ""
        """What went wrong when checkpoints were deleted, until somebody has said so."""
        self._directory = directory
        self._local = sorted(local)
        self._known: dict[int, set[int]] = {rank: set() for rank in ranks}
        self._grown = False

    def begin(self, round: int, absent: Iterable[int] = ()) -> None:
        """All ranks go on from a checkpoint of this round, but those that are not here; they may lack it."""
        for rank in self._known.keys() - absent:
            self._known[rank].add(round)

    def note(self, rank: int, round: int) -> None:
        """A rank has a checkpoint; what is said of others than the ranks known here changes nothing."""
        if rank in self._known:
            self._known[rank].add(round)
            self._grown = True

    def undo(self, rank: int, round: int) -> None:
        """A rank has none any more of this round and later ones."""
        known = self._known.get(rank, set())
        known -= {later for later in known if later >= round}

    @property
    def newest_round(self) -> int | None:
        """The newest round that all ranks have, also those that are lost; None when there is none."""
        return max(set.intersection(*self._known.values()), default=None)

    def tend(self, lost: Iterable[int]) -> bool:
        """Settles what new reports allow, without those that are lost; whether that is a later round."""
        if not self._grown:
            return False
        self._grown = False
        lost = set(lost)
        here = [rounds for rank, rounds in self._known.items() if rank not in lost]
        shared = sorted(set.intersection(*here)) if here else []
        newest = [max(rounds, default=-1) for rounds in here]
        return self.settle(min(newest, default=-1), shared[-2:][0] if shared else -1)

    def settle(self, round: int, kept: int) -> bool:
        """Deletes local checkpoints before round `kept`, but always leaves a rank its last before `round`.

        A rank without a checkpoint of `kept` was lost or away: it leaves only that one. So should one of the
        newest round that all have be bad, all have an earlier one.
        """
        if round <= self.settled:
            return False
        self.settled, self.kept = round, kept
        for rounds in self._known.values():
            rounds -= set(self._unneeded(rounds))
        for rank in self._local:
            self._delete_unneeded(rank)
        return True

    def _delete_unneeded(self, rank: int) -> None:
        """What the disk does not let go is tried again when a later round is settled."""
        try:
            for unneeded in self._unneeded(checkpoint.rounds(self._directory, rank)):
                checkpoint.delete(self._directory, rank, unneeded)
        except OSError as error:
            self.problem = f"checkpoints of rank {rank} cannot be deleted: {error.strerror or error}"

    def _unneeded(self, rounds: Collection[int]) -> list[int]:
        own = max((round for round in rounds if round < self.settled), default=self.settled)
        first = min(own, self.kept) if self.kept in rounds else own
        return [round for round in rounds if round < first]


def newest_of_all(offers: Mapping[int, Iterable[int]], ranks: Iterable[int]) -> int:
    """The newest round that all ranks have a checkpoint of; raises StartError saying who lacks what."""
    have = {rank: sorted(set(offers.get(rank, ()))) for rank in ranks}
    shared = set.intersection(*map(set, have.values()))
    if shared:
        return max(shared)
    latest = max((rounds[-1] for rounds in have.values() if rounds), default=None)
    if latest is None:
        raise StartError("no rank has a checkpoint to go on from")
    lacking = [rank for rank, rounds in have.items() if latest not in rounds]
    named = "; ".join(f"rank {rank} has {_listed(have[rank])}" for rank in lacking[:MOST_NAMED])
    more = f"; and {len(lacking) - MOST_NAMED} more ranks" if len(lacking) > MOST_NAMED else ""
    raise StartError(
        "there is no round that all ranks have a checkpoint of; "
        f"round {latest + 1} is lacking here: {named}{more}"
    )


def _listed(rounds: list[int]) -> str:
    return f"round {', '.join(str(round + 1) for round in rounds)}" if rounds else "none"
