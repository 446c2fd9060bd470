"""Who is here: machines that meet before the start, and what is known of every node after it.

Before the start machine 0 is the meeting point. Afterwards nothing needs it: the nodes talk to their
neighbors alone, and what the launchers still tell each other only feeds the view and the summary.
"""

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NoReturn

import msgspec

from decentnode.communication.security import Credentials
from decentnode.errors import UNDECODABLE, StartError
from decentnode.mapping import Mapping, tcp_endpoint
from decentnode.notes import DECODER, Join, Note, Refuse, Start, Wait
from decentnode.quorum import Quorum
from decentnode.rendezvous import Rendezvous
from decentnode.reports import (
    Checkpointed,
    Evaluated,
    Exited,
    Failed,
    Finished,
    Injected,
    NotCheckpointed,
    PeerBack,
    PeerMissing,
    Progress,
    Rejected,
    Report,
    Restarted,
    Stopped,
)  # fmt: skip
from decentnode.retention import newest_of_all
from decentnode.vouching import is_vouched, vouch
from decentnode.wording import how_it_ended, machine_in_words

_WORDS = {"digest": "configuration or graph", "dataset": "dataset's content", "run_id": "run to go on with"}

JOIN_INTERVAL = 0.5
REFUSING_SECONDS = 5.0
NOT_LISTED = " does not have this machine's key on its list; use one set of files from `decentnode keys`"
TWIN_SECONDS = 3.0
"""How long a machine that says nothing still counts as here, so that no second one takes its place."""


class State(StrEnum):
    """What has become of a node, as far as this machine knows."""

    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    """Ended before its last round, as it was asked to."""
    LOST = "lost"


@dataclass
class Member:
    """One node as the launcher sees it."""

    state: State = State.STARTING
    round: int = -1
    bytes_sent: int = 0
    loss: float | None = None
    """Of the training, as last told."""
    last_report: float = field(default_factory=time.monotonic)
    accused: bool = False
    """A peer went on without it."""
    error: str = ""
    out_of_memory: bool = False
    finished: Finished | None = None
    restarts: int = 0


class Roster:
    """The live set and everyone's progress, from the reports that have come."""

    def __init__(self, ranks: Iterable[int], home: dict[int, tuple[int, ...]]) -> None:
        """`home` gives the ranks of each local host process, by its position."""
        self.members = {rank: Member() for rank in ranks}
        self._home = home
        self.missing_edges: list[PeerMissing] = []

    def take(self, report: Report) -> list[int]:
        """Learns from one report; returns the ranks that are lost by it."""
        match report:
            case Progress() | Evaluated():
                member = self._heard(report.rank)
                member.round = max(member.round, report.round)
                member.bytes_sent = max(member.bytes_sent, report.bytes_sent)
                member.loss = report.loss if isinstance(report, Progress) else report.train_loss
            case PeerMissing():
                self._heard(report.rank)
                self.missing_edges.append(report)
                self.members[report.peer].accused = True
            case PeerBack():
                self._heard(report.rank)
                self.restore_edge(report.rank, report.peer)
            case Restarted():
                self.revive(self._home.get(report.process, ()))
            case Rejected() | Injected():
                self._heard(report.rank)
            case Finished():
                member = self._heard(report.rank)
                member.state, member.finished = State.FINISHED, report
                member.round, member.bytes_sent = report.rounds - 1, report.bytes_sent
            case Stopped():
                member = self._heard(report.rank)
                member.state, member.round = State.STOPPED, report.rounds - 1
            case Checkpointed() | NotCheckpointed():
                self._heard(report.rank)
            case Failed():
                self.members[report.rank].out_of_memory |= report.out_of_memory
                return self.lose([report.rank], report.error)
            case Exited():
                return self.lose(self._home.get(report.process, ()), how_it_ended(report.status))
        return []

    def lose(self, ranks: Iterable[int], error: str) -> list[int]:
        """Counts nodes as lost unless they have finished, and returns those; the first reason stays."""
        lost = []
        for rank in ranks:
            member = self.members[rank]
            if member.state not in (State.FINISHED, State.STOPPED, State.LOST):
                member.state, member.error = State.LOST, error
                lost.append(rank)
        return lost

    def revive(self, ranks: Iterable[int]) -> None:
        """The process of these nodes has been started again."""
        for rank in ranks:
            member = self.members[rank]
            if member.state is not State.FINISHED:
                member.state, member.error = State.RUNNING, ""
                member.accused = any(edge.peer == rank for edge in self.missing_edges)
                member.last_report = time.monotonic()
                member.restarts += 1

    def restore_edge(self, rank: int, peer: int) -> None:
        """One end exchanges with the other again."""
        self.missing_edges = [e for e in self.missing_edges if (e.rank, e.peer) != (rank, peer)]
        self.members[peer].accused = any(edge.peer == peer for edge in self.missing_edges)

    def start(self) -> None:
        """The nodes have been given the start."""
        for member in self.members.values():
            member.last_report = time.monotonic()
            if member.state is State.STARTING:
                member.state = State.RUNNING

    def ranks(self, *states: State) -> list[int]:
        """The ranks in any of these states."""
        return [rank for rank, member in self.members.items() if member.state in states]

    @property
    def active(self) -> list[int]:
        """Ranks that may still report."""
        return self.ranks(State.STARTING, State.RUNNING)

    def broken_edges(self) -> list[PeerMissing]:
        """Links that were given up although both ends finished."""
        return [e for e in self.missing_edges if self.members[e.peer].state is State.FINISHED]

    def reporting(self) -> set[int]:
        """Ranks whose tests are waited for: not lost, and not given up by a peer while they run."""
        return set(self.ranks(State.FINISHED, State.STOPPED)) | {
            rank for rank in self.ranks(State.RUNNING) if not self.members[rank].accused
        }

    def _heard(self, rank: int) -> Member:
        member = self.members[rank]
        member.last_report = time.monotonic()
        return member


class Assembly:
    """The launchers of all machines, linked through machine 0; of one machine alone, no socket is opened."""

    def __init__(
        self, mapping: Mapping, machine: int, greeting: Join, credentials: Credentials | None = None,
        quorum: Quorum | None = None,
    ) -> None:  # fmt: skip
        """With `credentials`, a machine is believed to be who its key says; `quorum`: else all must come."""
        self.machine = machine
        self.machines = range(len(mapping.machines))
        self.last_heard = dict.fromkeys(self.machines, time.monotonic())
        self.introductions: dict[int, bytes] = {}
        """What the nodes say of themselves: before the meeting those of this machine, after it all."""
        self._mapping = mapping
        self._greeting = greeting
        self._offers = dict(greeting.offers)
        self._incarnation = greeting.incarnation
        self._routes: dict[int, bytes] = {}
        self._quorum = quorum or Quorum(mapping)
        self._start: Start | None = None
        self._started: dict[int, bytes] = {}
        """Where the launchers answer that were given the start."""
        self._credentials = credentials
        self._signatures: dict[int, bytes] = {}
        self._rendezvous: Rendezvous | None = None
        self._endpoint = tcp_endpoint(mapping.address(0), mapping.rendezvous_port)

    def meet(self, deadline: float, is_stopped: Callable[[], bool]) -> Start:
        """What all agree on, once all are here; raises StartError naming who is missing or differs."""
        if len(self.machines) == 1:
            return self._agree([])
        if self._credentials and self._credentials.signers:
            said, digest = self.introductions, self._greeting.digest
            self._signatures[self.machine] = vouch(self._credentials, digest, said)
        self._rendezvous = Rendezvous(self._endpoint, self.machine, self._credentials)
        if self.machine == 0:
            return self._host_meeting(deadline, is_stopped)
        return self._attend_meeting(deadline, is_stopped)

    def _host_meeting(self, deadline: float, is_stopped: Callable[[], bool]) -> Start:
        limit = time.monotonic() + deadline
        missing = set(self.machines) - {0}
        while missing:
            if is_stopped():
                self.send(Refuse("the run was stopped on machine 0"))
                raise StartError("stopped")
            if self._quorum.is_met(missing, is_last_chance=time.monotonic() > limit):
                break
            if time.monotonic() > limit:
                absent = f"these have not come within {deadline:.0f} s: {self._name(missing)}"
                self._refuse(absent + self._refusals())
            for note in self.receive(timeout=0.1):
                if isinstance(note, Join):
                    if reason := self._difference(note):
                        self._refuse(reason)
                    self._introduce(note)
                    missing.discard(note.machine)
                    self.send(Wait(sorted(missing)), note.machine)
        start = self._agree(sorted(missing))
        if unsigned := self._unsigned(start):
            self._refuse(unsigned)
        self._start, self._started = start, dict(self._routes)
        self.send(start)
        return start

    def is_newcomer(self, machine: int) -> bool:
        """Whether its launcher is another one than that which was given the start, if any was."""
        return self._started.get(machine) != self._routes.get(machine)

    def admit(self, join: Join, late: int, absent: list[int], objection: str) -> bool:
        """Gives the start to a machine that comes after it; or refuses it alone, and lets others come."""
        assert self._start is not None, "only machine 0 is asked, after the start"
        own_run = join.run_id in ("", f"{self._start.run_id:016x}")
        run_id = self._greeting.run_id if own_run else join.run_id
        if reason := objection or self._difference(msgspec.structs.replace(join, run_id=run_id)):
            self.send(Refuse(reason), join.machine)
            del self._routes[join.machine]
            return False
        self._started[join.machine] = self._routes[join.machine]
        start = Start(self._start.run_id, incarnation=self._start.incarnation, absent=absent, late=late)
        self.send(start, join.machine)
        return True

    def _attend_meeting(self, deadline: float, is_stopped: Callable[[], bool]) -> Start:
        limit, next_join = time.monotonic() + deadline, 0.0
        absent = {0}
        greeting = msgspec.structs.replace(
            self._greeting,
            introductions=self.introductions,
            signature=self._signatures.get(self.machine, b""),
        )
        while (now := time.monotonic()) < limit and not is_stopped():
            if now >= next_join:
                self.send(greeting)
                next_join = now + JOIN_INTERVAL
            for note in self.receive(timeout=0.1):
                match note:
                    case Start():
                        if unsigned := "" if note.late else self._unsigned(note):
                            raise StartError(unsigned)
                        self.introductions = note.introductions
                        return note
                    case Refuse():
                        raise StartError(f"machine 0: {note.reason}")
                    case Wait():
                        absent = set(note.missing)
            if self._rendezvous is not None and self._rendezvous.is_turned_away:
                raise StartError(f"machine 0{NOT_LISTED}")
        if is_stopped():
            raise StartError(f"the run was stopped on machine {self.machine}")
        where = f" at {self._endpoint}" if absent == {0} else ""
        raise StartError(f"these have not come within {deadline:.0f} s: {self._name(absent)}{where}")

    def send(self, note: Note, to: int | None = None) -> int:
        """Sends to machine 0, or from there to one machine or all; returns the bytes. Never waits."""
        if self._rendezvous is None:
            return 0
        content = msgspec.msgpack.encode(note)
        routes = [b""] if self.machine else [r for m, r in self._routes.items() if to in (None, m)]
        for route in routes:
            self._rendezvous.send(content, route)
        return len(content) * len(routes)

    def receive(self, timeout: float = 0.0) -> list[Note]:
        """What the other machines sent; waits at most `timeout` seconds for the first."""
        notes: list[Note] = []
        if self._rendezvous is None or not self._rendezvous.wait(timeout):
            return notes
        while (arrival := self._rendezvous.receive()) is not None:
            try:
                note = DECODER.decode(arrival.content)
            except UNDECODABLE:
                continue
            machine = getattr(note, "machine", 0)
            known = machine in self.last_heard and machine != self.machine
            if arrival.machine not in (None, machine):
                self._rendezvous.refused["identity"] += 1
            elif known and self._keeps_route(self._rendezvous, machine, arrival.route):
                self.last_heard[machine] = time.monotonic()
                notes.append(note)
        return notes

    def _keeps_route(self, rendezvous: Rendezvous, machine: int, route: bytes) -> bool:
        """Learns where a machine answers; false, and a refusal, for a second launcher of a living machine."""
        if not route:
            return True
        known = self._routes.setdefault(machine, route)
        if known != route and time.monotonic() - self.last_heard[machine] < TWIN_SECONDS:
            reason = f"machine {machine} is here already; was it started twice, or with the wrong machine=?"
            rendezvous.send(msgspec.msgpack.encode(Refuse(reason)), route)
            return False
        self._routes[machine] = route
        return True

    def close(self) -> None:
        """Lets what was sent leave within two seconds, and frees the sockets."""
        if self._rendezvous is not None:
            self._rendezvous.close()
            self._rendezvous = None

    def _refusals(self) -> str:
        refused = +self._rendezvous.refused if self._rendezvous else Counter()
        listed = ", ".join(f"{reason} {count}" for reason, count in refused.items())
        return f"; connections that were refused: {listed}" if listed else ""

    def _difference(self, join: Join) -> str:
        for what in ("version", "digest", "dataset", "run_id"):
            here, there = getattr(self._greeting, what), getattr(join, what)
            if here != there:
                word = _WORDS.get(what, what)
                differs = f"another {word}: {there[:12] or 'none'}; machine 0: {here[:12] or 'none'}"
                return f"{self._name({join.machine})} has {differs}"
        return ""

    def _introduce(self, join: Join) -> None:
        """Takes over what a machine says of its nodes, and nothing that it says of others."""
        own = set(self._mapping.ranks_of(join.machine))
        self.introductions |= {r: said for r, said in join.introductions.items() if r in own}
        self._offers |= {r: rounds for r, rounds in join.offers.items() if r in own}
        self._incarnation = max(self._incarnation, join.incarnation)
        self._signatures[join.machine] = join.signature

    def _unsigned(self, start: Start) -> str:
        """Which machine has not signed what its nodes are said to say; empty when none has to."""
        if not self._credentials or not self._credentials.signers:
            return ""
        for machine in set(self.machines) - set(start.absent):
            own = self._mapping.ranks_of(machine)
            said = {rank: what for rank, what in start.introductions.items() if rank in own}
            signature = start.signatures.get(machine, b"")
            if not is_vouched(self._credentials, machine, self._greeting.digest, said, signature):
                return f"{self._name({machine})} has not signed what its nodes are said to say"
        return ""

    def _agree(self, absent: list[int]) -> Start:
        """A new run; or the newest round that all ranks of an earlier one can go on after."""
        start = Start(secrets.randbits(62) + 1, self.introductions, 0, -1, self._signatures, absent)
        if not self._greeting.run_id:
            return start
        try:
            here = [rank for m in self.machines if m not in absent for rank in self._mapping.ranks_of(m)]
            round = newest_of_all(self._offers, here)
        except StartError as error:
            self._refuse(str(error))
        run_id = int(self._greeting.run_id, 16)
        return msgspec.structs.replace(start, run_id=run_id, incarnation=self._incarnation + 1, round=round)

    def _refuse(self, reason: str) -> NoReturn:
        """Tells every machine, also those that come within the next seconds."""
        limit = time.monotonic() + REFUSING_SECONDS
        self.send(Refuse(reason))
        while len(self._routes) < len(self.machines) - 1 and time.monotonic() < limit:
            for note in self.receive(timeout=0.1):
                if isinstance(note, Join):
                    self.send(Refuse(reason), note.machine)
        raise StartError(reason)

    def _name(self, machines: Iterable[int]) -> str:
        return "; ".join(machine_in_words(self._mapping, machine) for machine in sorted(machines))
