"""The other launchers as seen by one: which of their reports count, and which have fallen silent.

A launcher reports only on nodes of its own machine. Only machine 0 relays reports about others, and no
launcher accepts reports about its own nodes. About its own nodes a listed machine may report anything.
"""

import time
from collections import Counter, abc
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import isfinite

from msgspec.structs import astuple

from decentnode.communication.base import HostProcess
from decentnode.communication.launcher_link.reports import Exited, Failed, Report, Restarted
from decentnode.core.timeouts import Timeouts
from decentnode.launcher.state import messages
from decentnode.launcher.state.membership import MembershipTable
from decentnode.launcher.state.messages import Note
from decentnode.mapping.base import Mapping

RELAY_INTERVAL = 1.0
"""Seconds between two relays, with the progress of the nodes; an empty one shows that a launcher runs."""
IDENTITY = "identity"
RANGE = "range"
"""Why a report is refused: it is about another machine's nodes, or about values that the run does
not have.
"""

NOBODY = -1
"""Subject of reports for the local launcher only, such as `Ready`: its process ids receive signals."""


class RemoteMachines:
    """The other machines of a run."""

    def __init__(
        self,
        *,
        machine: int,
        mapping: Mapping,
        processes: Sequence[HostProcess],
        membership: MembershipTable,
        last_received: abc.Mapping[int, float],
        log_event: Callable[[str, str], object],
        rounds: int,
        vector_bytes: int,
    ) -> None:
        """`log_event` records events, by kind and text; `last_received` belongs to the rendezvous, which
        updates it; `vector_bytes`: of a sum of vectors.
        """
        self.refused: Counter[str] = Counter()
        """Refused reports, by reason."""
        self._machine = machine
        self._mapping = mapping
        self._membership = membership
        self._last_received = last_received
        self._last_relay = 0.0
        self._vector_bytes = vector_bytes
        self._rounds = rounds
        self._machine_of = [*map(mapping.machine_of, membership.members)]
        self._carriers = [process.machine for process in processes]
        self._log_event = log_event
        self._reported: set[int] = set()

    def reports(self, relayed: messages.RelayedReports) -> Iterator[Report]:
        """The reports that count; the others are counted in `refused`."""
        for report in relayed.reports:
            if reason := self._objection(report, relayed.machine):
                self._refuse(relayed.machine, reason)
            else:
                yield report

    def present(self) -> set[int]:
        """The machines that take part: this one, and those with nodes that may still report."""
        return {self._machine, *(self._machine_of[rank] for rank in self._membership.active)}

    def forget_silent(self, now: float) -> list[Failed]:
        """On machine 0: marks the nodes of silent machines as lost; returns their losses."""
        lost = []
        for machine in sorted(self.present() - {0}) if self._machine == 0 else ():
            if now - self._last_received[machine] > Timeouts.machine_silent:
                why = f"no message from machine {machine} for {Timeouts.machine_silent:.0f} s"
                ranks = [r for r in self._mapping.ranks_of(machine) if self._membership.members[r].is_active]
                lost += [Failed(rank, why) for rank in ranks]
                # Recorded separately: these nodes count again if their launcher reports again.
                for rank in ranks:
                    self._membership.members[rank].silent_since = now
        return lost

    def receive(self, notes: Iterable[Note]) -> None:
        """Counts nodes of a machine that reports again: only their launcher was silent.

        A launcher that only asks to join has none of these nodes: it is a new process.
        """
        speaking = {getattr(note, "machine", 0) for note in notes if not isinstance(note, messages.Join)}
        for machine in sorted(speaking - self.present()):
            silent = self._membership.silent().intersection(self._mapping.ranks_of(machine))
            for rank in silent:
                self._membership.count_as_running(rank)
            if silent:
                self._log_event("machine_back", f"machine {machine} reconnected; its nodes are active again")

    @property
    def pause(self) -> float:
        """Seconds until the next relay, or until a machine counts as silent."""
        now = time.monotonic()
        # Limits in the past are left out: they would make this pause 0 again and again.
        silent = [self._last_received[m] + Timeouts.machine_silent for m in self.listening]
        return max(0.0, min([self._last_relay + RELAY_INTERVAL, *silent]) - now)

    def is_relay_due(self, has_reports: bool, now: float) -> bool:
        """Whether this launcher has reports to relay, or has relayed none for RELAY_INTERVAL."""
        is_due = has_reports or now - self._last_relay >= RELAY_INTERVAL
        self._last_relay = now if is_due else self._last_relay
        return is_due

    @property
    def lost(self) -> set[int]:
        """Ranks that need no checkpoint: lost, and not merely silent for a while."""
        return self._membership.lost - self._membership.silent(Timeouts.machine_gone)

    def is_left_alone(self, seconds: float = Timeouts.machine_silent) -> bool:
        """Whether machine 0 has been silent for that many seconds."""
        return self._machine != 0 and time.monotonic() - self._last_received[0] > seconds

    @property
    def listening(self) -> list[int]:
        """Machines that this launcher sends to: messages to a silent one would queue, a vector each.

        Includes machines whose nodes have finished: they still observe the last round.
        """
        now, counterparts = time.monotonic(), [0] if self._machine else [*self._last_received][1:]
        return [m for m in counterparts if now - self._last_received[m] <= Timeouts.machine_silent]

    @property
    def observing(self) -> set[int]:
        """Machines that may contribute models: their launcher reports, and not all of their nodes
        are lost.
        """
        kept = self._membership.members.keys() - self._membership.lost
        return {self._machine_of[rank] for rank in kept}.intersection(self.listening) | {self._machine}

    def admits(self, note: Note) -> bool:
        """Whether a message fits this run; rounds or sizes that the run does not have are counted."""
        machine = getattr(note, "machine", 0)
        rounds = (getattr(note, name, None) for name in ("round", "last", "kept"))
        fits = isinstance(note, messages.Start) or all(
            -1 <= r < self._rounds for r in rounds if r is not None
        )
        if isinstance(note, messages.PartialSum | messages.PartialDistance | messages.VectorPiece):
            fits = fits and note.round >= 0 and 0 <= note.count <= len(self._mapping.ranks_of(machine))
        if isinstance(note, messages.PartialSum):
            fits = fits and not note.count and not note.content
        elif isinstance(note, messages.VectorPiece):
            fits = fits and 0 <= note.start < note.start + len(note.content) <= self._vector_bytes
        if not fits:
            self._refuse(machine, RANGE)
        return fits

    def _objection(self, report: Report, machine: int) -> str:
        """Why a report from this machine is refused; empty if it counts."""
        # These name a process instead of a rank.
        if isinstance(report, Restarted | Exited):
            about, carriers = report.process, self._carriers
        else:
            about, carriers = getattr(report, "rank", NOBODY), self._machine_of
        if not 0 <= about < len(carriers):
            return IDENTITY
        # Machine 0 relays reports about all nodes but those here; another machine those about its own.
        is_responsible = carriers[about] != self._machine if machine == 0 else carriers[about] == machine
        if not is_responsible:
            return IDENTITY
        peers = [*getattr(report, "peers", ()), getattr(report, "peer", 0)]
        is_known = all(peer in self._membership.members for peer in peers)
        is_due = -1 <= getattr(report, "round", 0) <= self._rounds
        is_possible = 0 <= getattr(report, "rounds", 0) <= self._rounds
        # A NaN in one report would spread into the means of the summary.
        values = [*astuple(report), *getattr(report, "metrics", {}).values()]
        is_finite = all(isfinite(number) for number in values if isinstance(number, float))
        return "" if is_known and is_due and is_possible and is_finite else RANGE

    def _refuse(self, machine: int, reason: str) -> None:
        self.refused[reason] += 1
        # Shown once per machine, because a faulty launcher may send thousands.
        if machine not in self._reported:
            self._reported.add(machine)
            about = "nodes of other machines" if reason == IDENTITY else "what the run does not have"
            self._log_event("refused", f"ignored reports from machine {machine} about {about}")
