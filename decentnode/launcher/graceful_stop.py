"""A run that is asked to stop: all nodes of all machines end after the same round.

The launcher that gets a signal lets its nodes pause and tells machine 0, which lets all machines pause. When
each has said which round its furthest node has announced, the highest of these is the last round. Nodes
that take longer than `failures.stop_deadline` for that are killed by their launcher.
"""

import signal
import time
from collections.abc import Callable

from decentnode.communication.launcher_link.heartbeats import UNDECIDED, HeartbeatBoard
from decentnode.core.text import counted
from decentnode.core.timeouts import Timeouts
from decentnode.errors import STOPPED_BY
from decentnode.launcher.cluster.messages import HighestRound, LastRound, Note, Pause, StopRequest

ASK_INTERVAL = 0.5
Send = Callable[[Note, int | None], object]


class GracefulStop:
    """One machine's part in it; nothing happens before somebody asks."""

    def __init__(
        self, heartbeats: HeartbeatBoard, machine: int, machines: set[int], send: Send, deadline: float
    ) -> None:
        """`machines` may shrink as launchers fall silent; `send` gives a note to a machine, or to all;
        `deadline`: for how many seconds nodes are waited for."""
        self.signal: signal.Signals | None = None
        """What the run was asked to stop with, here or on another machine."""
        self.is_urgent = False
        """Nothing is waited for any more."""
        self._heartbeats = heartbeats
        self._machine = machine
        self._machines = machines
        self._send = send
        self._deadline = deadline
        self._asked = 0.0
        self._next_word = 0.0
        self._decided = False
        self._announced: dict[int, int] = {}

    def ask(self, signum: signal.Signals) -> None:
        """From here on no local node begins another round; safe in a signal handler."""
        if self.signal is None:
            self._asked = time.monotonic()
            self._heartbeats.last_round = UNDECIDED
            self.signal = signum

    def announcement(self, saved: int | None) -> str:
        """Says in a line what will happen; `saved`: the newest round after which all nodes were saved."""
        rest = (
            "There is no checkpoint yet, so killed nodes lose the run."
            if saved is None
            else f"After a kill, resume continues at round {saved + 2}."
        )
        return (
            f"stopping after the current round. Nodes that need more than {self._deadline:g} s are killed; "
            f"a second Ctrl-C kills all at once. {rest}"
        )

    @property
    def is_overdue(self) -> bool:
        """Whether the nodes have had all the time that they get."""
        return self.signal is not None and time.monotonic() - self._asked > self._deadline

    def take(self, note: Note) -> None:
        """Learns from another machine."""
        match note:
            case StopRequest() | Pause():
                self.ask(_known(note.signal))
            case HighestRound():
                self._announced[note.machine] = note.round
                if self._decided:
                    self._send(LastRound(self._heartbeats.last_round), note.machine)
            case LastRound():
                self._decide(note.round)

    def advance(self) -> None:
        """Does what is due; to be called again and again once somebody has asked."""
        waited = time.monotonic() - self._asked
        if self.signal is None or self._decided or waited < Timeouts.announced_round:
            return
        self._announced[self._machine] = self._heartbeats.highest_round
        if self._machine == 0:
            if self._machines <= self._announced.keys() or waited > Timeouts.announcements:
                self._decide(max(self._announced.values()))
                # A machine that was not counted on may hear of it only now.
                self._send(Pause(self.signal), None)
                self._send(LastRound(self._heartbeats.last_round), None)
            else:
                self._say(Pause(self.signal))
        elif waited > Timeouts.decision:
            self._decide(self._announced[self._machine])
        else:
            self._say(
                StopRequest(self._machine, self.signal),
                HighestRound(self._machine, self._announced[self._machine]),
            )

    def _decide(self, round: int) -> None:
        self._decided = True
        self._heartbeats.last_round = round

    def _say(self, *notes: Note) -> None:
        """Tells machine 0, or from there all, now and then, because a launcher may not listen yet."""
        now = time.monotonic()
        if now >= self._next_word:
            self._next_word = now + ASK_INTERVAL
            for note in notes:
                self._send(note, None)


def killed_in_words(killed: int, saved: int | None) -> str:
    """What it means that nodes were killed; `saved`: the newest round after which all nodes were saved."""
    rest = (
        "no checkpoint of all nodes to resume from (checkpoint.every)"
        if saved is None
        else f"resume continues at round {saved + 2}"
    )
    return f"killed {counted(killed, 'node')} that did not finish in time; {rest}"


def _known(number: int) -> signal.Signals:
    """The signal that another launcher got; SIGTERM for what is none of those that stop a run."""
    return signal.Signals(number) if number in STOPPED_BY else signal.SIGTERM
