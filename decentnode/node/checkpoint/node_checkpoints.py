"""When a node is saved, and how it goes on from what was saved."""

import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, Protocol

import torch

from decentnode.communication.launcher_link.heartbeats import Activity, HeartbeatSlot
from decentnode.communication.launcher_link.reports import Checkpointed, NotCheckpointed, Rejoined, Reporter
from decentnode.communication.launcher_link.shared_array import shared_array
from decentnode.node.checkpoint import store as checkpoint
from decentnode.node.checkpoint.safetensors_io import BadTensors
from decentnode.node.checkpoint.state_encoding import UnknownKind
from decentnode.node.checkpoint.store import Checkpoint, RunStamp
from decentnode.node.round_scheduler import RoundScheduler
from decentnode.results.records import Records

WARN_EVERY = 60.0
"""Seconds between two complaints of one node about checkpoints that could not be written."""
FROM_THE_START = -1


class RunIdentity:
    """Which run the nodes are part of, and after which round it goes on; in memory made before the fork."""

    def __init__(self, directory: Path, settings: str, ranks: int = 0) -> None:
        """`directory` is that of the checkpoints; `settings` a hash of what decides the models' numbers."""
        self.directory = directory
        self.settings = settings
        self._absent = shared_array((ranks,), "bool")
        self._words = shared_array((4,))
        self._words[2] = FROM_THE_START

    def settle(self, run_id: int, incarnation: int, round: int = FROM_THE_START) -> None:
        """All machines have agreed on it; to be called before the nodes are given the start."""
        self._words[0], self._words[1], self._words[2] = run_id, incarnation, round

    def begin(self, began: float) -> None:
        """The nodes are given the start: the run counts as begun at that time of `time.monotonic`."""
        self._words[3] = round(1e6 * began)

    @property
    def seconds(self) -> float:
        """How long the run has taken."""
        return time.monotonic() - int(self._words[3]) / 1e6

    @property
    def absent(self) -> set[int]:
        """Ranks whose machine has not come yet: they are neither connected to nor waited for."""
        return set(self._absent.nonzero()[0].tolist())

    @absent.setter
    def absent(self, ranks: Collection[int]) -> None:
        self._absent[:] = [rank in ranks for rank in range(len(self._absent))]

    @property
    def stamp(self) -> RunStamp:
        """What the checkpoints of this run say of it."""
        return RunStamp(int(self._words[0]), int(self._words[1]), self.settings)

    @property
    def round(self) -> int:
        """The round after which the run goes on."""
        return int(self._words[2])


class SavedNode(Protocol):
    """What its checkpoints need of a node."""

    rank: int
    round: int
    records: Records
    course: RoundScheduler

    @property
    def heartbeat(self) -> HeartbeatSlot:
        """Where others see what it does."""

    @property
    def device(self) -> torch.device:
        """Where its model lies."""

    def snapshot(self) -> dict[str, Any]:
        """Its state, and how far its time and its counts have come."""

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from `snapshot()`; raises DecentnodeError when the state is not one of this node."""

    def set_elapsed(self, seconds: float) -> None:
        """Has the node count its seconds from so long ago on."""


class NodeCheckpoints:
    """The checkpoints of one node."""

    def __init__(self, lineage: RunIdentity, every: int, reporter: Reporter) -> None:
        """`every`: rounds between them; 0: only when the run is asked to stop."""
        self._lineage = lineage
        self._every = every
        self._reporter = reporter
        self._last = FROM_THE_START
        self._undone: int | None = None
        """The first round that was undone: what may still lie there of it and later ones is never kept."""
        self._complained: float | None = None

    def after(self, node: SavedNode) -> None:
        """Saves the node if that is due after the round that it has just done."""
        if self._every and (node.round + 1) % self._every == 0:
            self._save(node)

    def at_the_end(self, node: SavedNode) -> None:
        """Saves the node if it was asked to stop before its last round."""
        if node.course.is_cut_short and node.round > self._last:
            self._save(node)

    def resume(self, node: SavedNode) -> None:
        """Brings the node to where the run goes on, on the clock of the run; raises BadCheckpoint."""
        node.set_elapsed(self._lineage.seconds)
        if self._lineage.round == FROM_THE_START:
            return
        device = node.device
        self.go_on(node, checkpoint.read(self._lineage.directory, node.rank, self._lineage.round, device))

    def go_on(self, node: SavedNode, found: Checkpoint) -> None:
        """Brings the node to where it was saved; raises DecentnodeError when that is not one of this node."""
        node.restore(found.state)
        # A machine that comes late knows less of the run's time than a checkpoint.
        node.set_elapsed(max(node.records.seconds, self._lineage.seconds))
        self._last = found.round

    def undo(self, node: SavedNode, round: int) -> None:
        """The node takes part from `round` on: what was saved of that and later ones never counts again.

        Raises OSError.
        """
        self._last, self._undone = min(self._last, round - 1), round
        self._reporter.send(Rejoined(node.rank, round))
        directory, failed = self._lineage.directory, None
        for later in checkpoint.rounds(directory, node.rank):
            try:
                if later >= round:
                    checkpoint.delete(directory, node.rank, later)
            except OSError as error:
                failed = error
        checkpoint.clean_up(directory, node.rank)
        if failed is not None:
            raise failed

    def _save(self, node: SavedNode) -> None:
        node.heartbeat.mark(node.round, Activity.CHECKPOINT)
        # Who goes on from the checkpoint makes no record of its round or earlier ones again; who goes on from
        # an earlier one does.
        if gap := node.records.sync():
            self._complain(node, gap)
            return
        directory, stamp = self._lineage.directory, self._lineage.stamp
        try:
            is_undone = self._undone is not None and node.round >= self._undone
            checkpoint.save(directory, node.rank, node.round, node.snapshot(), stamp, anew=is_undone)
        except (OSError, UnknownKind, BadTensors) as error:
            reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
            self._complain(node, reason)
            return
        self._last = node.round
        self._reporter.send(Checkpointed(node.rank, node.round))

    def _complain(self, node: SavedNode, reason: str) -> None:
        """Tells the launcher, now and then; the node goes on, and what was saved before is kept."""
        now = time.monotonic()
        if self._complained is None or now - self._complained >= WARN_EVERY:
            self._complained = now
            print(f"round {node.round + 1}: no checkpoint: {reason}", flush=True)
            self._reporter.send(NotCheckpointed(node.rank, node.round, reason[:500]))
