"""A run that is asked to stop: all nodes of all machines end after the same round.

The launcher that gets a signal lets its nodes pause and tells machine 0, which lets all machines pause. When
each has said which round its furthest node has announced, the highest of these is the last round. Each
launcher decides for itself how long its nodes may take for that.
"""

import signal
import time
from collections.abc import Callable, Collection

from decentnode.communication.launcher_link.heartbeats import UNDECIDED, Activity, HeartbeatBoard
from decentnode.core.text import counted
from decentnode.errors import STOPPED_BY
from decentnode.launcher.cluster.messages import HighestRound, LastRound, Note, Pause, StopRequest

SETTLING = 0.05
"""Seconds in which a node that was about to begin a round has announced it, or has seen that it must not."""
ASK_AGAIN = 0.5
MACHINES_PATIENCE = 3.0
"""How long machine 0 waits for what the others announce."""
DECISION_PATIENCE = MACHINES_PATIENCE + 2.0
"""How long they wait for what machine 0 decides, which may have been asked later and has to decide first."""
MOST_SECONDS = 10.0
"""How long nodes may take to end before they are killed; where that would cost much, without a mark."""
Send = Callable[[Note, int | None], object]


class GracefulStop:
    """One machine's part in it; nothing happens before somebody asks."""

    def __init__(
        self, beacons: HeartbeatBoard, machine: int, machines: set[int], send: Send, patience: float
    ) -> None:
        """`machines` may shrink as launchers fall silent; `send` gives a note to a machine, or to all;
        `patience`: for how many seconds nodes are waited for that get on."""
        self.signal: signal.Signals | None = None
        """What the run was asked to stop with, here or on another machine."""
        self.is_urgent = False
        """Nothing is waited for any more."""
        self._beacons = beacons
        self._machine = machine
        self._machines = machines
        self._send = send
        self._patience = max(patience, MOST_SECONDS)
        self._can_go_back = False
        self._asked = 0.0
        self._next_word = 0.0
        self._decided = False
        self._announced: dict[int, int] = {}

    def ask(self, signum: signal.Signals) -> None:
        """From here on no local node begins another round; safe in a signal handler."""
        if self.signal is None:
            self._asked = time.monotonic()
            self._beacons.last_round = UNDECIDED
            self.signal = signum

    def begin(self, saved: int | None, every: int) -> str:
        """Says in a line what will happen; `saved`: the newest round after which all nodes were saved.

        `every`: rounds between checkpoints; 0: they are made only now, so that a kill would cost much.
        """
        self._can_go_back = saved is not None and every > 0
        killed = f"hang, or need more than {self._patience:g} s,"
        if self._can_go_back:
            killed = f"need more than {MOST_SECONDS:g} s for it, and are not being saved,"
        rest = "cannot go on" if saved is None else f"can go on from round {saved + 2}"
        return (
            f"stops after the round that the furthest node has begun; nodes that {killed} are killed, "
            f"as all are at a second signal: then the run {rest}"
        )

    def is_overdue(self, at_work: Collection[int]) -> bool:
        """Whether the nodes have had all the time that they get; `at_work`: whose last word is waited for."""
        waited = time.monotonic() - self._asked
        if self.signal is None or waited <= MOST_SECONDS:
            return False
        return waited > self._patience or not self._is_worth_waiting(at_work)

    def _is_worth_waiting(self, at_work: Collection[int]) -> bool:
        """Whether nodes are being saved, or the run would be lost although some get on."""
        own = self._beacons.activities(at_work)
        if Activity.CHECKPOINT in own or (at_work and not own):
            return True  # of other machines' nodes their launchers decide
        if own and self._can_go_back:
            return False
        # What other machines' nodes do is not seen here, nor how far a node's test is.
        is_unseen = not self._can_go_back and (len(self._machines) > 1 or Activity.EVALUATE in own)
        return is_unseen or time.monotonic() - self._beacons.last_mark <= MOST_SECONDS

    def take(self, note: Note) -> None:
        """Learns from another machine."""
        match note:
            case StopRequest() | Pause():
                self.ask(_known(note.signal))
            case HighestRound():
                self._announced[note.machine] = note.round
                if self._decided:
                    self._send(LastRound(self._beacons.last_round), note.machine)
            case LastRound():
                self._decide(note.round)

    def advance(self) -> None:
        """Does what is due; to be called again and again once somebody has asked."""
        waited = time.monotonic() - self._asked
        if self.signal is None or self._decided or waited < SETTLING:
            return
        self._announced[self._machine] = self._beacons.highest_round
        if self._machine == 0:
            if self._machines <= self._announced.keys() or waited > MACHINES_PATIENCE:
                self._decide(max(self._announced.values()))
                # A machine that was not counted on may hear of it only now.
                self._send(Pause(self.signal), None)
                self._send(LastRound(self._beacons.last_round), None)
            else:
                self._say(Pause(self.signal))
        elif waited > DECISION_PATIENCE:
            self._decide(self._announced[self._machine])
        else:
            self._say(
                StopRequest(self._machine, self.signal),
                HighestRound(self._machine, self._announced[self._machine]),
            )

    def _decide(self, round: int) -> None:
        self._decided = True
        self._beacons.last_round = round

    def _say(self, *notes: Note) -> None:
        """Tells machine 0, or from there all, now and then, because a launcher may not listen yet."""
        now = time.monotonic()
        if now >= self._next_word:
            self._next_word = now + ASK_AGAIN
            for note in notes:
                self._send(note, None)


def killed_in_words(killed: int, saved: int | None) -> str:
    """What it means that nodes were killed; `saved`: the newest round after which all nodes were saved."""
    if saved is not None:
        rest = f"the run can go on from round {saved + 2}"
    else:
        rest = "there is no checkpoint of all nodes to go on from (checkpoint.every: how often one is made)"
    had = "had not ended and was" if killed == 1 else "had not ended and were"
    return f"{counted(killed, 'node')} here {had} killed without being saved; {rest}"


def _known(number: int) -> signal.Signals:
    """The signal that another launcher got; SIGTERM for what is none of those that stop a run."""
    return signal.Signals(number) if number in STOPPED_BY else signal.SIGTERM
