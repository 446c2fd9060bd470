"""The rendezvous of all machines before the start, and the messages between launchers after it.

Before the start, machine 0 is the meeting point, unless it finds that the run is in progress: then it joins
late, as another machine does. Afterwards all launchers send to all, and no machine is needed by the others.
"""

import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from math import inf
from typing import NoReturn

import msgspec

from decentnode.communication.security.curve import Credentials
from decentnode.communication.security.signatures import is_vouched, vouch
from decentnode.config.loader import MOST_SHOWN
from decentnode.config.settings import FailureSettings
from decentnode.core.clock import AwakeClock
from decentnode.core.text import counted, printable
from decentnode.core.timeouts import Timeouts
from decentnode.errors import UNDECODABLE, BadInput, StartError
from decentnode.launcher.cluster.agreement import agreed
from decentnode.launcher.cluster.channel import MOST_BYTES, Arrival, LauncherChannel
from decentnode.launcher.state.messages import DECODER, Join, LauncherMessage, Refuse, Start, Wait
from decentnode.mapping.base import Mapping, tcp_endpoint
from decentnode.node.plugin_sources import HASH_LETTERS, difference

_WORDS = {"digest": "configuration or graph", "dataset": "dataset's content", "run_id": "run to continue"}
MOST_VALUE = MOST_SHOWN + 20

SAME_CODE = "put the same files on all machines (failures.allow_different_code: true permits others)"
MOST_KEYS = 5
"""Settings that are named where machines have different ones."""
JOIN_INTERVAL = 0.5
CHECK_INTERVAL = 0.1
MOST_AT_ONCE = 4
"""Messages of full size that are read before the launcher does something else."""
LEAST_BYTES = MOST_BYTES // 256
"""The least size that a message counts for."""
MOST_EARLY = 256
"""Messages of a run that is in progress which are kept until this machine has its start."""
MOST_ASKED = 16
"""How many other machines are asked at a time whether the run is in progress."""
_START = struct.Struct("!QI")
NOT_LISTED = (
    " has other keys than this machine; use one set of files from `decentnode keys`, or one secret, on all"
)


class Rendezvous:
    """The links between the launchers."""

    def __init__(
        self, mapping: Mapping, machine: int, join: Join, credentials: Credentials | None = None,
        failures: FailureSettings | None = None,
    ) -> None:  # fmt: skip
        """`credentials`: keys identify machines; `failures`: how many nodes must be here, by default all."""
        self.machine = machine
        self.machines = range(len(mapping.machines))
        self._checked = time.monotonic()
        self.last_received = dict.fromkeys(self.machines, time.monotonic())
        self._mapping = mapping
        self._join = join
        self._joins: dict[int, Join] = {}
        """What the machines that are here have said; those of others only machine 0 has."""
        self._launchers: dict[int, bytes] = {}
        """By machine the launcher that was heard last."""
        self._started: dict[int, bytes] = {}
        """By machine the launcher that takes part in the run."""
        self._failures = failures or FailureSettings()
        self._start: Start | None = None
        self._early_arrivals: deque[Arrival] = deque(maxlen=MOST_EARLY)
        """Messages of a run in progress, from before this machine had its start."""
        self._next_join, self._turn = 0.0, 0
        self._credentials = credentials
        self._channel: LauncherChannel | None = None
        self.refused: Counter[str] = Counter()
        """Refused connections and messages, by reason."""
        self.news: list[str] = []
        """Lines about machines that differ and may."""

    def endpoint(self, machine: int) -> str:
        """Returns where a machine receives."""
        return tcp_endpoint(self._mapping.address(machine), self._mapping.rendezvous_port)

    def meet(self, handshakes: dict[int, bytes], deadline: float, is_stopped: Callable[[], bool]) -> Start:
        """Agrees with all machines on the start; raises StartError that names missing or different ones.

        Raises BadInput if a machine has other code. `handshakes`: the handshakes of this machine.
        """
        own_join = msgspec.structs.replace(self._join, handshakes=handshakes)
        self._joins[self.machine] = own_join
        if self._credentials and self._credentials.signers:
            signature = vouch(self._credentials, own_join.digest, own_join.handshakes)
            self._joins[self.machine] = msgspec.structs.replace(own_join, signature=signature)
        bound = tcp_endpoint(self._mapping.machines[self.machine].bound, self._mapping.rendezvous_port)
        self._channel = LauncherChannel(self.endpoint, bound, self.machine, self._credentials)
        self.refused = self._channel.refused
        meet = self._attend_rendezvous if self.machine else self._host_rendezvous
        self._start = meet(deadline, is_stopped)
        # From here on a Join of a launcher in `_started` is a late repetition, not a newcomer.
        self._started = {} if self._start.late else dict(self._launchers)
        self._channel.start = _START.pack(self._start.run_id, self._start.incarnation)
        # Until now most machines had nothing to say to this one.
        now, absent = time.monotonic(), self._start.absent
        self.last_received = {machine: -inf if machine in absent else now for machine in self.machines}
        return self._start

    def _host_rendezvous(self, deadline: float, is_stopped: Callable[[], bool]) -> Start:
        clock = AwakeClock(CHECK_INTERVAL)
        limit = clock.now() + deadline
        enough_since: float | None = None
        refusal, refused_at = "", -inf
        while missing := self._missing():
            # The others must not wait for their deadline.
            if is_stopped():
                self._answer(Refuse("the run was stopped on machine 0"))
                raise StartError("stopped")
            now = clock.now()
            # If a machine leaves again, the grace time of the others starts over. The machines of a run in
            # progress would not take part in another one.
            is_in_progress = now - refused_at < Timeouts.machine_left()
            enough_since = (enough_since or now) if self._suffices(missing) and not is_in_progress else None
            # Before the deadline counts: at the deadline fewer machines may suffice.
            if enough_since is not None and (now > limit or now - enough_since > self._failures.grace):
                break
            if now > limit:
                listed = ", ".join(f"{reason} {count}" for reason, count in self.refused.items())
                refused = f"; connections that were refused: {listed}" if listed else ""
                waited = f"timed out after {deadline:.0f} s waiting for {self._name(missing)}"
                self._refuse(Refuse(f"{waited}{refused}{refusal}"))
            # The run may be in progress without this machine, which was started again.
            self._ask(now, self.machines[1:])
            for message in self.receive(timeout=CHECK_INTERVAL):
                match message:
                    case Join():
                        if differs := self._difference(message):
                            self._refuse(differs)
                        self._joins[message.machine] = message
                        self._answer(Wait(sorted(self._missing())), message.machine)
                    case Start():
                        return self._accepted(message)
                    case Refuse():
                        refusal = f"; a machine with a run in progress says: {message.reason}"
                        refused_at = clock.now()
                    case Wait():
                        refused_at = clock.now()
        start = self._agree(sorted(missing))
        if unsigned := self._unsigned(start):
            self._refuse(Refuse(unsigned))
        self._answer(start)
        return start

    def _ask(self, now: float, machines: Sequence[int]) -> None:
        """Sends the Join of this machine to machine 0, and to some of these, in turn."""
        if now < self._next_join:
            return
        self._next_join = now + JOIN_INTERVAL
        others = [machine for machine in machines if machine not in (0, self.machine)]
        self._turn = (self._turn + MOST_ASKED) % len(others) if len(others) > MOST_ASKED else 0
        others = [*others[self._turn :], *others[: self._turn]][:MOST_ASKED]
        for machine in [0, *others] if self.machine else others:
            self.send(self._joins[self.machine], machine)

    def _suffices(self, missing: Collection[int]) -> bool:
        """Whether the nodes of the other machines are enough (key failures.start)."""
        start, nodes = self._failures.start, self._mapping.num_nodes
        least = nodes if start == "all" else int(start.removeprefix("at_least "))
        return nodes - sum(len(self._mapping.ranks_of(machine)) for machine in missing) >= least

    def _missing(self) -> set[int]:
        """Returns machines that have not joined, or have left again; drops the messages of the latter."""
        before, self._checked = self._checked, time.monotonic()
        # If this process was suspended, messages that arrived meanwhile are not read yet.
        timeout = Timeouts.machine_left(self._checked - before)
        for machine in [m for m in self._joins if m and self._checked - self.last_received[m] > timeout]:
            del self._joins[machine]
            self._launchers.pop(machine, None)
        return set(self.machines) - self._joins.keys()

    def is_newcomer(self, machine: int) -> bool:
        """Whether the launcher of a machine that was heard last does not take part in the run."""
        return self._started.get(machine) != self._launchers.get(machine)

    def admit(self, join: Join, start: Start, objection: str = "", waits: bool = False) -> None:
        """Sends the start to a late machine, or refuses it alone so that it may try again.

        `start`: what it has to know of the present state of the run; `waits`: it waits instead of a refusal.
        """
        assert self._start is not None, "only a machine of the run is asked"
        own_run = join.run_id in ("", f"{self._start.run_id:016x}")
        run_id = self._join.run_id if own_run else join.run_id
        differs = self._difference(msgspec.structs.replace(join, run_id=run_id))
        if refusal := Refuse(objection) if objection else differs:
            self._answer(Wait([self.machine]) if waits else refusal, join.machine)
            return
        # A late machine receives no handshakes: its nodes rejoin without them.
        of_run = {name: getattr(self._start, name) for name in ("run_id", "incarnation", "round", "starts")}
        self._answer(msgspec.structs.replace(start, **of_run), join.machine)

    def _attend_rendezvous(self, deadline: float, is_stopped: Callable[[], bool]) -> Start:
        clock = AwakeClock(CHECK_INTERVAL)
        limit, answered = clock.now() + deadline, 0.0
        absent = {0}
        while (now := clock.now()) < limit and not is_stopped():
            # Repeated, because machine 0 may start later, and counts silent machines as missing. Where it
            # does not answer, the run may be in progress without it.
            self._ask(now, () if now - answered < 2 * JOIN_INTERVAL else self.machines)
            for message in self.receive(timeout=CHECK_INTERVAL):
                match message:
                    case Start():
                        return self._accepted(message)
                    case Refuse():
                        raise message.error(f"machine {message.machine}: ")
                    case Wait():
                        absent, answered = set(message.missing), now
            if self._channel is not None and self._channel.is_refused:
                raise BadInput(f"machine 0{NOT_LISTED}")
        if is_stopped():
            raise StartError(f"the run was stopped on machine {self.machine}")
        where = f" at {self.endpoint(0)}" if absent == {0} else ""
        raise StartError(f"timed out after {deadline:.0f} s waiting for {self._name(absent)}{where}")

    def _accepted(self, start: Start) -> Start:
        """Returns a start that this machine accepts: signatures and quorum are checked here, too."""
        if wrong := self._objection(start):
            raise StartError(wrong)
        return start

    def _answer(self, message: Wait | Start | Refuse, to: int | None = None) -> None:
        """Answers the Join of a machine, or of all, on the connection by which it came."""
        if isinstance(message, Refuse):
            message = msgspec.structs.replace(message, machine=self.machine)
        content = msgspec.msgpack.encode(message)
        for machine, launcher in self._launchers.items():
            if self._channel is not None and to in (None, machine):
                self._channel.answer(content, launcher)

    def send(self, message: LauncherMessage, to: int) -> int:
        """Sends to a machine; returns the bytes, 0 if it was dropped. Never waits."""
        content = msgspec.msgpack.encode(message)
        return len(content) if self._channel is not None and self._channel.send(content, to) else 0

    @property
    def descriptors(self) -> list[int]:
        """What a thread polls while `has_messages` is False."""
        return self._channel.descriptors if self._channel else []

    @property
    def has_messages(self) -> bool:
        """Whether `receive` would return a message."""
        return self._channel is not None and (self._has_early or self._channel.has_messages)

    @property
    def _has_early(self) -> bool:
        return bool(self._early_arrivals) and self._start is not None

    def receive(self, timeout: float = 0.0) -> list[LauncherMessage]:
        """Returns messages of the other machines; waits at most `timeout` seconds for the first."""
        messages: list[LauncherMessage] = []
        channel, room = self._channel, MOST_AT_ONCE * MOST_BYTES
        if channel is None or not (channel.wait(0.0 if self._has_early else timeout) or self._has_early):
            return messages
        while self._has_early:
            if (message := self._read(channel, self._early_arrivals.popleft())) is not None:
                messages.append(message)
        # A machine that sends without a pause must not occupy the launcher.
        while room > 0 and (arrival := channel.receive()) is not None:
            room -= len(arrival.content) + LEAST_BYTES
            if (message := self._read(channel, arrival)) is not None:
                messages.append(message)
        return messages

    def _read(self, channel: LauncherChannel, arrival: Arrival) -> LauncherMessage | None:
        """Returns the decoded message; None if it is refused, or kept."""
        machine = arrival.machine
        if machine not in self.last_received or machine == self.machine:
            return None
        if arrival.start and not channel.start:
            self._early_arrivals.append(arrival)
            return None
        try:
            message: LauncherMessage = DECODER.decode(arrival.content)
        except UNDECODABLE:
            channel.refused["note"] += 1
            return None
        if getattr(message, "machine", machine) != machine:
            channel.refused["identity"] += 1
            return None
        is_answer = isinstance(message, Wait | Start | Refuse)
        # Only machine 0 begins a run; another one lets machines join the run in progress.
        if isinstance(message, Start) and machine and not message.late:
            channel.refused["identity"] += 1
            return None
        if isinstance(message, Join):
            if not arrival.launcher or not self._is_of_this_run(channel, message, arrival.launcher):
                return None
        elif is_answer == bool(arrival.launcher) or (not is_answer and arrival.start != channel.start):
            channel.refused["another start"] += 1  # a launcher of an earlier start of this run
            return None
        elif not is_answer:
            self._launchers[machine] = self._started[machine] = arrival.launcher
        # Only accepted messages count: a second launcher must not keep a dead one alive.
        if not (self._start and isinstance(message, Join)):
            self.last_received[machine] = time.monotonic()
        return message

    def _is_of_this_run(self, channel: LauncherChannel, join: Join, launcher: bytes) -> bool:
        """Whether a launcher may ask to join; False, and a refusal, for another job's, or a second one."""
        machine, reason = join.machine, ""
        if join.job != self._join.job:
            here, there = (of.job or "no job of torchrun or Slurm" for of in (self._join, join))
            reason = f"machine {machine} is of another job: {there}; this port has one of {here}"
            channel.refused["another job"] += 1
        known = self._launchers.get(machine, launcher)
        if known != launcher and time.monotonic() - self.last_received[machine] < Timeouts.machine_twin:
            reason = f"machine {machine} is here already; was it started twice, or with the wrong machine=?"
        if reason:
            channel.answer(msgspec.msgpack.encode(Refuse(reason, machine=self.machine)), launcher)
            return False
        if known != launcher:
            # What waits for the old launcher is not for this one.
            channel.renew(machine)
        self._launchers[machine] = launcher
        return True

    def close(self) -> None:
        """Delivers what was sent within two seconds, and closes the socket."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _difference(self, join: Join) -> Refuse | None:
        """Returns the first difference to this machine that refuses another, causes before consequences."""
        name, own_join, own = self._name({join.machine}), self._join, f"machine {self.machine}"
        if own_join.version != join.version:
            return Refuse(f"{name} has another version: {join.version[:12]}; {own}: {own_join.version}")
        if code := self._other_code(join):
            if not self._failures.allow_different_code:
                return Refuse(f"{name} has {code}; {SAME_CODE}", is_bad_input=True)
            line = f"{name} has {code}; failures.allow_different_code permits it"
            self.news += [line] if line not in self.news else []
        for field in ("digest", "dataset", "run_id"):
            here, there = getattr(own_join, field), getattr(join, field)
            # A machine that has nothing of the run takes that of the others.
            is_new = field == "run_id" and own_join.or_resume and join.or_resume and not (here and there)
            if here != there and not is_new:
                keys = _other_values(own_join.settings, join.settings, own) if field == "digest" else ""
                differs = f"another {_WORDS[field]}: {there[:12] or 'none'}; {own}: {here[:12] or 'none'}"
                return Refuse(f"{name} has {differs}{keys}")
        return None

    def _other_code(self, join: Join) -> str:
        """Returns how a machine's code differs from that of this one, as text; empty if it does not."""
        here, own = self._join, f"machine {self.machine}"
        if here.torch != join.torch:
            return f"another version of torch: {printable(join.torch[:40])}; {own}: {here.torch}"
        if here.files != join.files:
            length = HASH_LETTERS
            hashes = f"hash {printable(join.package[:length])}; {own}: {here.package[:length]}"
            return f"other code than {own}: {difference(here.files, join.files)} ({hashes})"
        return f"other code than {own}: {files}" if (files := difference(here.code, join.code)) else ""

    def _objection(self, start: Start) -> str:
        """Returns why this machine does not accept the start; an empty text if it does."""
        # A handshake of an absent node could only be forged.
        here = set(self.machines) - set(start.absent)
        ranks = {rank for machine in here for rank in self._mapping.ranks_of(machine)}
        if not start.handshakes.keys() <= (set() if start.late else ranks):
            return "machine 0 passes on words of nodes that are not here"
        if start.late:
            return ""
        absent = set(self.machines) - here
        if self.machine in absent or not self._suffices(absent):
            return f"machine 0 would start without {self._name(absent)} (key failures.start)"
        return self._unsigned(start)

    def _unsigned(self, start: Start) -> str:
        """Returns a machine whose handshakes have no valid signature; empty if there is none."""
        if not self._credentials or not self._credentials.signers:
            return ""
        for machine in set(self.machines) - set(start.absent):
            ranks = self._mapping.ranks_of(machine)
            handshakes = {rank: content for rank, content in start.handshakes.items() if rank in ranks}
            signature = start.signatures.get(machine, b"")
            if not is_vouched(self._credentials, machine, self._join.digest, handshakes, signature):
                return f"{self._name({machine})} has not signed the handshakes of its nodes"
        return ""

    def _agree(self, absent: list[int]) -> Start:
        """Returns the agreement of the machines that are here; informs all of the reason if there is none."""
        try:
            return agreed(self._joins, self._mapping, absent)
        except (BadInput, StartError) as error:
            self._refuse(Refuse(str(error), isinstance(error, BadInput)))

    def _refuse(self, refusal: Refuse) -> NoReturn:
        """Sends a refusal to every machine, also to those that join within the next seconds."""
        limit = time.monotonic() + Timeouts.refusal
        self._answer(refusal)
        # Machines that join late would otherwise wait for their whole deadline.
        while len(self._launchers) < len(self.machines) - 1 and time.monotonic() < limit:
            for message in self.receive(timeout=CHECK_INTERVAL):
                if isinstance(message, Join):
                    self._answer(refusal, message.machine)
        raise refusal.error()

    def _name(self, machines: Iterable[int]) -> str:
        return "; ".join(map(self._mapping.describe, sorted(machines)))


def _other_values(here: dict[str, str], there: dict[str, str], own: str) -> str:
    """Returns a line for each setting with different values on two machines, with both of them."""
    keys = sorted(key for key in {*here, *there} if here.get(key) != there.get(key))
    lines = [
        f"\n  {printable(key[:100])}: {printable(there.get(key, 'none')[:MOST_VALUE])}; "
        f"{own}: {here.get(key, 'none')}"
        for key in keys[:MOST_KEYS]
    ]
    more = f"\n  and {counted(len(keys) - MOST_KEYS, 'more setting')}" if len(keys) > MOST_KEYS else ""
    return "".join(lines) + more
