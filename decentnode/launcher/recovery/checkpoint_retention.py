"""Which checkpoints exist, which round all ranks have, and which may be deleted."""

from collections.abc import Collection, Iterable
from pathlib import Path

from decentnode.communication.launcher_link.reports import Checkpointed, NotCheckpointed, Rejoined, Report
from decentnode.launcher.state.dispatcher import Dispatcher
from decentnode.launcher.state.messages import CheckpointsCommitted
from decentnode.node.checkpoint import store as checkpoint


class CheckpointRetention:
    """Knows the checkpoints from the nodes' reports, and deletes those of local ranks."""

    def __init__(self, directory: Path, ranks: Iterable[int], local: Iterable[int]) -> None:
        self.settled = -1
        """Every rank that takes part has a checkpoint of this round or of a later one."""
        self.kept = -1
        """The second newest round that all of these have; -1: none. Checkpoints from there on stay."""
        self.whole = -1
        """The newest round that all ranks had when checkpoints were deleted last, lost ones included.

        The run can be resumed as a whole from it, so it stays, too.
        """
        self.problem = ""
        """The last error of a write or a deletion, until it is shown."""
        self._directory = directory
        self._local = sorted(local)
        self._known: dict[int, set[int]] = {rank: set() for rank in ranks}
        self._grown = False
        self._ranks = tuple(self._known)
        self._place = 0
        """The place in `_ranks` of a rank that had no newer checkpoint when it was looked for."""

    def register(self, dispatcher: Dispatcher[Report]) -> None:
        """Registers for checkpoints that nodes make, cannot make, or discard."""
        dispatcher.register(Checkpointed, lambda report: self.note(report.rank, report.round))
        dispatcher.register(NotCheckpointed, self._note_problem)
        # The node has deleted these checkpoints, so no resume may count on them.
        dispatcher.register(Rejoined, lambda report: self.undo(report.rank, report.round))

    def receive(self, message: CheckpointsCommitted) -> None:
        """Deletes what the coordinator says is needed no more."""
        self.settle(message.round, message.kept, message.whole)

    def _note_problem(self, report: NotCheckpointed) -> None:
        self.problem = f"rank {report.rank}, round {report.round + 1}: no checkpoint: {report.reason}"

    def begin(self, round: int, ranks: Iterable[int]) -> None:
        """Records that these ranks continue from a checkpoint of this round."""
        for rank in self._known.keys() & set(ranks):
            self._known[rank].add(round)

    def note(self, rank: int, round: int) -> None:
        """Records a rank's checkpoint; ignores ranks that are not known here."""
        if rank in self._known:
            self._known[rank].add(round)
            self._grown = True

    def undo(self, rank: int, round: int) -> None:
        """Records that a rank has discarded its checkpoints of `round` and later ones."""
        known = self._known.get(rank, set())
        known -= {later for later in known if later >= round}

    @property
    def newest_round(self) -> int | None:
        """The newest round that all ranks have, lost ones included; None if there is none."""
        return max(set.intersection(*self._known.values()), default=None)

    def tend(self, lost: Iterable[int]) -> bool:
        """Updates both rounds from new reports, ignoring lost ranks; returns whether they increased."""
        if not self._grown:
            return False
        self._grown = False
        lost = set(lost)
        if self._has_one_behind(lost):
            return False
        here = [rounds for rank, rounds in self._known.items() if rank not in lost]
        # Two rounds are kept: the newest may turn out damaged when it is read.
        shared = sorted(set.intersection(*here)) if here else []
        newest = [max(rounds, default=-1) for rounds in here]
        kept, whole = shared[-2:][0] if shared else -1, self.newest_round
        # A machine that came late does not know the checkpoints of ranks that were lost before.
        return self.settle(min(newest, default=-1), kept, self.whole if whole is None else whole)

    def _has_one_behind(self, lost: Collection[int]) -> bool:
        """Whether some rank has no checkpoint after the settled round, so that nothing can change.

        The search goes on where the last one ended: thousands of ranks report one after the other, and a pass
        over all of them for each report would take longer than the reports.
        """
        places = range(self._place, self._place + len(self._ranks))
        for place in (place % len(self._ranks) for place in places):
            rank = self._ranks[place]
            if rank not in lost and max(self._known[rank], default=-1) <= self.settled:
                self._place = place
                return True
        return False

    def settle(self, round: int, kept: int, whole: int = -1) -> bool:
        """Deletes local checkpoints before round `kept`, but keeps each rank's last one before `round`.

        A rank without a checkpoint of `kept` was lost or disconnected, and keeps only that one. If the newest
        common round is damaged, all ranks have an earlier one. Checkpoints of round `whole` stay.
        """
        # Both rounds only increase; a delayed message changes nothing.
        if round <= self.settled:
            return False
        self.settled, self.kept, self.whole = round, kept, whole
        # Of all ranks: other machines delete the files of theirs.
        for rounds in self._known.values():
            rounds -= set(self._unneeded(rounds))
        unneeded: dict[int, set[int]] = {}
        for rank, saved in checkpoint.rounds_of(self._directory, self._local).items():
            for before in self._unneeded(saved):
                unneeded.setdefault(before, set()).add(rank)
        for before, without in unneeded.items():
            try:
                # A file that other ranks need stays as it is, because its process may be writing there.
                checkpoint.delete(self._directory, without, before, only_files=True)
            except OSError as error:
                # Tried again with the next round.
                reason = error.strerror or error
                self.problem = f"checkpoints of round {before + 1} cannot be deleted: {reason}"
        return True

    def _unneeded(self, rounds: Collection[int]) -> list[int]:
        newest = max((round for round in rounds if round < self.settled), default=self.settled)
        first = min(newest, self.kept) if self.kept in rounds else newest
        return [round for round in rounds if round < first and round != self.whole]
