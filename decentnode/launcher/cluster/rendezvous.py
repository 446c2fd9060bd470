"""The rendezvous of all machines before the start, and the messages between launchers after it.

Before the start, machine 0 is the meeting point, unless it finds that the run is in progress: then it joins
late, as another machine does. Afterwards all launchers send to all, and no machine is needed by the others.
"""

import contextlib
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from math import inf
from typing import NoReturn

import msgspec

from decentnode.communication.security.curve import Credentials
from decentnode.communication.security.signatures import vouch
from decentnode.config.settings import FailureSettings
from decentnode.core.clock import AwakeClock
from decentnode.core.streams import print_line
from decentnode.core.text import first_line, printable
from decentnode.core.timeouts import Timeouts
from decentnode.errors import UNDECODABLE, BadInput, DecentnodeError, StartError, explained
from decentnode.launcher.cluster.agreement import StartConditions, agreed
from decentnode.launcher.cluster.channel import MOST_BYTES, Arrival, LauncherChannel
from decentnode.launcher.cluster.place import Places
from decentnode.launcher.state.messages import (
    DECODER,
    Arrived,
    Ended,
    Join,
    LauncherMessage,
    PlaceOffer,
    PlaceRequest,
    Refuse,
    Start,
    Wait,
)
from decentnode.mapping.base import Mapping, is_placeholder, tcp_endpoint
from decentnode.mapping.reachability import why_unreachable

JOIN_INTERVAL = 0.5
ASK_INTERVAL = 4.0
"""The longest time between two questions whether the run is in progress."""
CHECK_INTERVAL = 0.1
MOST_AT_ONCE = 4
"""Messages of full size that are read before the launcher does something else."""
LEAST_BYTES = MOST_BYTES // 256
"""The least size that a message counts for."""
MOST_EARLY = 256
"""Messages of a run that is in progress which are kept until this machine has its start."""
MOST_ASKED = 16
"""How many other machines are asked at a time whether the run is in progress."""
NO_LAUNCHER = "what listens there does not answer: another program, or a run with other links (security)"
_START = struct.Struct("!QI")
NOT_LISTED = (
    " has other keys than this machine; use one set of files from `decentnode keys`, or one secret, on all"
)
OF_OTHER_KEYS = {"handshake", "unknown key"}
"""Reasons of refused connections that a machine with other keys causes, and others do, too."""
OTHER_KEYS = " (other keys on one side?)"


def refusal_for(error: BaseException) -> Refuse:
    """Returns what the other machines are told of the error that ends this one."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return Refuse("it was stopped")
    reason = first_line(error) if isinstance(error, DecentnodeError) else explained(error)
    return Refuse(reason[:500], isinstance(error, BadInput))


class Rendezvous:
    """The links between the launchers."""

    def __init__(
        self, mapping: Mapping, machine: int, join: Join, credentials: Credentials | None = None,
        failures: FailureSettings | None = None,
        offer: Callable[[PlaceRequest], PlaceOffer] = lambda request: PlaceOffer(),
    ) -> None:  # fmt: skip
        """`credentials`: keys identify machines; `failures`: how many nodes must be here, by default all.

        `offer`: answers a machine that looks for its place in the run, after the start.
        """
        self.machine = machine
        self.machines = range(len(mapping.machines))
        self._checked = time.monotonic()
        self.last_received = dict.fromkeys(self.machines, time.monotonic())
        self._mapping = mapping
        self._joins: dict[int, Join] = {}
        """What the machines that are here have said; those of others only machine 0 has."""
        self._launchers: dict[int, bytes] = {}
        """By machine the launcher that was heard last."""
        self._started: dict[int, bytes] = {}
        """By machine the launcher that takes part in the run."""
        self.conditions = StartConditions(join, mapping, failures or FailureSettings(), credentials)
        self._offer = offer
        self._start: Start | None = None
        self._places = Places(len(self.machines), self.conditions.failures.start_deadline)
        self._early_arrivals: deque[Arrival] = deque(maxlen=MOST_EARLY)
        """Messages of a run in progress, from before this machine had its start."""
        self._next_join = self._next_ask = 0.0
        self._ask_pause, self._turn = JOIN_INTERVAL, 0
        self.addresses: dict[int, str] = {}
        """Where machines are reached, if the mapping does not say it."""
        self._credentials = credentials
        self._channel: LauncherChannel | None = None
        self.refused: Counter[str] = Counter()
        """Refused connections and messages, by reason."""
        self._is_over = False
        """Whether the machines have met, or were told that they do not."""

    def endpoint(self, machine: int) -> str:
        """Returns where a machine receives; an empty text if nobody knows it yet."""
        address = self._address(machine)
        return "" if is_placeholder(address) else tcp_endpoint(address, self._mapping.rendezvous_port)

    def _address(self, machine: int) -> str:
        return self.addresses.get(machine) or self._mapping.address(machine)

    def move(self, machine: int, address: str) -> None:
        """Records where a machine is reached from now on."""
        if address and address != self.addresses.get(machine):
            self.addresses[machine] = address
            if self._channel is not None:
                self._channel.renew(machine)

    def meet(self, handshakes: dict[int, bytes], deadline: float, is_stopped: Callable[[], bool]) -> Start:
        """Agrees with all machines on the start; raises StartError that names missing or different ones.

        Raises BadInput if a machine has other code. `handshakes`: the handshakes of this machine.
        """
        own_join = msgspec.structs.replace(self.conditions.join, handshakes=handshakes)
        self._joins[self.machine] = own_join
        if self._credentials and self._credentials.signers:
            signature = vouch(self._credentials, own_join.digest, own_join.handshakes)
            self._joins[self.machine] = msgspec.structs.replace(own_join, signature=signature)
        channel = self._channel = self._open()
        self._noticed, self._named = time.monotonic(), set[int]()
        meet = self._attend_rendezvous if self.machine else self._host_rendezvous
        self._start = meet(deadline, is_stopped)
        for machine, address in self._start.addresses.items():
            self.move(machine, address)
        # From here on a Join of a launcher in `_started` is a late repetition, not a newcomer.
        self._started = {} if self._start.late else dict(self._launchers)
        channel.begin(_START.pack(self._start.run_id, self._start.incarnation), self._start.absent)
        # Until now most machines had nothing to say to this one.
        now, absent = time.monotonic(), self._start.absent
        self.last_received = {machine: -inf if machine in absent else now for machine in self.machines}
        return self._start

    def announce_end(self, refusal: Refuse) -> None:
        """Tells the other machines why this one ends before all have met; does nothing after that.

        They may not be here yet, so it waits for them for a while.
        """
        if self._is_over:
            return
        seconds = min(Timeouts.early_end, self.conditions.failures.start_deadline)
        print_line(
            f"{self._name({self.machine})} ends before the run begins: {refusal.reason}; the other machines "
            f"are told, for at most {seconds:.0f} s"
        )
        with contextlib.suppress(BadInput, StartError):
            if self._channel is None:
                self._open()
            if self.machine == 0:
                self._refuse(self._after_end(refusal, 0), seconds)
            limit = time.monotonic() + seconds
            # Repeated, because machine 0 may start later; it answers with the end of all.
            while time.monotonic() < limit:
                self._send_end(refusal)
                if any(isinstance(message, Refuse) for message in self.receive(timeout=JOIN_INTERVAL)):
                    return

    def _send_end(self, refusal: Refuse) -> None:
        self._is_over = True
        self.send(Ended(self.machine, refusal.reason, refusal.is_bad_input, self.conditions.join.job), 0)

    def _after_end(self, refusal: Refuse, machine: int) -> Refuse:
        reason = f"{self._name({machine})} has ended before the run began: {printable(refusal.reason[:500])}"
        return Refuse(reason, refusal.is_bad_input)

    def _open(self) -> LauncherChannel:
        bound = tcp_endpoint(self._mapping.machines[self.machine].bound, self._mapping.rendezvous_port)
        self._channel = LauncherChannel(self.endpoint, bound, self.machine, self._credentials)
        self.refused = self._channel.refused
        return self._channel

    def _host_rendezvous(self, deadline: float, is_stopped: Callable[[], bool]) -> Start:
        clock = AwakeClock(CHECK_INTERVAL)
        began = clock.now()
        limit = began + deadline
        enough_since: float | None = None
        grace = self.conditions.failures.grace
        refusal, refused_at = "", -inf
        while missing := self._missing():
            # The others must not wait for their deadline.
            if is_stopped():
                self._refuse(Refuse("the run was stopped on machine 0"), Timeouts.launcher_linger)
            now = clock.now()
            # If a machine leaves again, the grace time of the others starts over. The machines of a run in
            # progress would not take part in another one; they answer when they are asked.
            asks = now < min(limit, began + 3 * JOIN_INTERVAL)
            is_in_progress = asks or now - refused_at < Timeouts.machine_left()
            suffices = self.conditions.suffices_without(missing) and not is_in_progress
            enough_since = (enough_since or now) if suffices else None
            # Before the deadline counts: at the deadline fewer machines may suffice.
            if enough_since is not None and (now > limit or now - enough_since > grace):
                break
            if now > limit:
                listed = ", ".join(f"{reason} {count}" for reason, count in self.refused.items())
                refused = f"; connections that were refused: {listed}" if listed else ""
                # Only a question: a scan of ports, which must not end a run, looks the same from here.
                refused += OTHER_KEYS if OF_OTHER_KEYS & self.refused.keys() else ""
                what = self._awaited(missing)
                waited = f"timed out after {deadline:.0f} s waiting for {what}{refused}{refusal}"
                self._refuse(Refuse(waited))
            self._notice(missing, limit - now)
            # The run may be in progress without this machine, which was started again.
            self._ask(now, sorted(missing))
            for message in self.receive(timeout=CHECK_INTERVAL):
                match message:
                    case Join():
                        if differs := self.conditions.difference(message):
                            self._refuse(differs)
                        self._joins[message.machine] = message
                        self.move(message.machine, message.address)
                        self._answer(Wait(sorted(self._missing())), message.machine)
                    case Ended():
                        self._take_end(message)
                    case Start():
                        return self._accepted(message)
                    case Refuse():
                        said = printable(message.reason[:500])
                        refusal = f"; a machine with a run in progress says: {said}"
                        refused_at = clock.now()
                    case Wait():
                        refused_at = clock.now()
        start = self._agree(sorted(missing))
        if unsigned := self.conditions.unsigned(start):
            self._refuse(Refuse(unsigned))
        self._is_over = True
        self._answer(start)
        return start

    def _take_end(self, message: Ended) -> None:
        """Ends the start if it needs a machine that has ended; otherwise that one alone."""
        refusal = self._after_end(Refuse(message.reason, message.is_bad_input), message.machine)
        if self.conditions.failures.start == "all":
            self._refuse(refusal)
        self._answer(refusal, message.machine)
        self._joins.pop(message.machine, None)
        self._launchers.pop(message.machine, None)

    def _ask(self, now: float, machines: Sequence[int]) -> None:
        """Sends the Join of this machine to machine 0, and to some of these, in turn."""
        asked = []
        if self.machine and now >= self._next_join:
            self._next_join = now + JOIN_INTERVAL
            asked = [0]
        if now >= self._next_ask:
            # Rarely in the end: what is sent to a machine that never comes waits in memory.
            self._next_ask, self._ask_pause = now + self._ask_pause, min(2 * self._ask_pause, ASK_INTERVAL)
            others = [machine for machine in machines if machine not in (0, self.machine)]
            self._turn = (self._turn + MOST_ASKED) % len(others) if len(others) > MOST_ASKED else 0
            asked += [*others[self._turn :], *others[: self._turn]][:MOST_ASKED]
        if asked:
            self.send(self._joins[self.machine], *asked)

    def _missing(self) -> set[int]:
        """Returns machines that have not joined, or have left again; drops the messages of the latter."""
        before, self._checked = self._checked, time.monotonic()
        # If this process was suspended, messages that arrived meanwhile are not read yet.
        timeout = Timeouts.machine_left(self._checked - before)
        for machine in [m for m in self._joins if m and self._checked - self.last_received[m] > timeout]:
            del self._joins[machine]
            self._launchers.pop(machine, None)
        return set(self.machines) - self._joins.keys()

    def _offer_before_start(self, request: PlaceRequest) -> PlaceOffer:
        if self.machine or request.machine in self.machines:
            return PlaceOffer()
        return self.place_among(request, self._missing())

    def place_among(self, request: PlaceRequest, free: Collection[int]) -> PlaceOffer:
        """Returns the place of a machine that asks: its own, or one of the free ones."""
        addresses = {self.machine: self._mapping.address(self.machine)} | self.addresses
        if request.machine in self.machines:
            return PlaceOffer(request.machine, addresses)
        return self._places.offer(request, free, addresses)

    def is_newcomer(self, machine: int) -> bool:
        """Whether the launcher of a machine that was heard last does not take part in the run."""
        return self._started.get(machine) != self._launchers.get(machine)

    def admit(self, join: Join, start: Start, objection: str = "", waits: bool = False) -> None:
        """Sends the start to a late machine, or refuses it alone so that it may try again.

        `start`: what it has to know of the present state of the run; `waits`: it waits instead of a refusal.
        """
        assert self._start is not None, "only a machine of the run is asked"
        own_run = join.run_id in ("", f"{self._start.run_id:016x}")
        run_id = self.conditions.join.run_id if own_run else join.run_id
        differs = self.conditions.difference(msgspec.structs.replace(join, run_id=run_id))
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
            self._notice(absent, limit - now)
            for message in self.receive(timeout=CHECK_INTERVAL):
                match message:
                    case Start():
                        return self._accepted(message)
                    case Refuse():
                        self._is_over = True
                        raise message.error(f"machine {message.machine}: ")
                    case Wait():
                        absent, answered = set(message.missing), now
            if self._channel is not None and self._channel.is_refused:
                self._is_over = True
                raise BadInput(f"machine 0{NOT_LISTED}")
        if is_stopped():
            self._send_end(Refuse("it was stopped"))
            raise StartError(f"the run was stopped on machine {self.machine}")
        self._is_over = True
        raise StartError(f"timed out after {deadline:.0f} s waiting for {self._awaited(absent)}")

    def _notice(self, machines: Collection[int], seconds: float) -> None:
        """Says which machines are missing, for at most so many seconds; again when others are."""
        if time.monotonic() - self._noticed < Timeouts.rendezvous_notice or self._named == set(machines):
            return
        self._noticed, self._named = time.monotonic(), set(machines)
        print_line(f"waiting for {self._awaited(machines)}, for at most {seconds:.0f} s more")

    def _awaited(self, machines: Collection[int]) -> str:
        """Returns which machines are awaited, and why the first of them is not reached, if that is known."""
        first = min(machines)
        why = why_unreachable(self._address(first), self._mapping.rendezvous_port, Timeouts.reach)
        if first == 0:
            return f"{self._name(machines)} at {self.endpoint(0)}: {why or NO_LAUNCHER}"
        return self._name(machines) + (f"; machine {first}: {why}" if why else "")

    def _accepted(self, start: Start) -> Start:
        """Returns a start that this machine accepts: signatures and quorum are checked here, too."""
        self._is_over = True
        if wrong := self.conditions.objection(start):
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

    def send(self, message: LauncherMessage, *machines: int) -> int:
        """Sends to machines; returns the bytes, without those that were dropped. Never waits."""
        content, channel = msgspec.msgpack.encode(message), self._channel
        return len(content) * sum(channel.send(content, machine) for machine in machines) if channel else 0

    @property
    def descriptors(self) -> list[int]:
        """What a thread polls while `has_messages` is False."""
        return self._channel.descriptors if self._channel else []

    @property
    def has_messages(self) -> bool:
        """Whether `receive` would return a message."""
        return self._channel is not None and (self._has_early_arrivals or self._channel.has_messages)

    @property
    def _has_early_arrivals(self) -> bool:
        return bool(self._early_arrivals) and self._start is not None

    def receive(self, timeout: float = 0.0) -> list[LauncherMessage]:
        """Returns messages of the other machines; waits at most `timeout` seconds for the first."""
        messages: list[LauncherMessage] = []
        channel, room = self._channel, MOST_AT_ONCE * MOST_BYTES
        if channel is None or not (
            channel.wait(0.0 if self._has_early_arrivals else timeout) or self._has_early_arrivals
        ):
            return messages
        while self._has_early_arrivals:
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
        # One that has no index yet may ask for one.
        if machine == self.machine or machine > len(self.machines):
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
        if isinstance(message, PlaceRequest):
            if arrival.launcher and message.job == self.conditions.join.job:
                offer = self._offer if self._start is not None else self._offer_before_start
                channel.answer(msgspec.msgpack.encode(offer(message)), arrival.launcher)
            return None
        if machine not in self.last_received:
            return None
        if isinstance(message, Ended) and self._start is not None:
            # It ends before it could join late; the run goes on without it, and nothing waits for its nodes.
            refusal = Refuse("the run has begun without this machine", machine=self.machine)
            channel.answer(msgspec.msgpack.encode(refusal), arrival.launcher)
            return None
        is_answer = isinstance(message, Wait | Start | Refuse)
        # Only machine 0 begins a run; another one lets machines join the run in progress.
        if isinstance(message, Start) and machine and not message.late:
            channel.refused["identity"] += 1
            return None
        if isinstance(message, Join | Ended):
            if not arrival.launcher or not self._is_of_this_run(channel, message, arrival.launcher):
                return None
        elif is_answer == bool(arrival.launcher) or not (is_answer or self._takes_part(arrival, message)):
            channel.refused["another start"] += 1  # a launcher of an earlier start of this run
            return None
        elif not is_answer:
            self._launchers[machine] = self._started[machine] = arrival.launcher
        # Only accepted messages count: a second launcher must not keep a dead one alive.
        if not (self._start and isinstance(message, Join)):
            self.last_received[machine] = time.monotonic()
        return message

    def _takes_part(self, arrival: Arrival, message: LauncherMessage) -> bool:
        """Whether a launcher is that of its machine in this start: another one may have taken its place."""
        is_known = self._started.get(arrival.machine, arrival.launcher) == arrival.launcher
        start = self._channel.start if self._channel is not None else b""
        return arrival.start == start and (is_known or isinstance(message, Arrived))

    def _is_of_this_run(self, channel: LauncherChannel, join: Join | Ended, launcher: bytes) -> bool:
        """Whether a launcher may ask to join; False, and a refusal, for another job's, or a second one."""
        machine, reason = join.machine, ""
        if join.job != self.conditions.join.job:
            here, there = (of.job or "no job" for of in (self.conditions.join, join))
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

    def _agree(self, absent: list[int]) -> Start:
        """Returns the agreement of the machines that are here; informs all of the reason if there is none."""
        try:
            return agreed(self._joins, self._mapping, absent)
        except (BadInput, StartError) as error:
            self._refuse(Refuse(str(error), isinstance(error, BadInput)))

    def _refuse(self, refusal: Refuse, seconds: float | None = None) -> NoReturn:
        """Sends a refusal to every machine, also to those that join within the next seconds."""
        self._is_over = True
        limit = time.monotonic() + (Timeouts.refusal if seconds is None else seconds)
        self._answer(refusal)
        # Machines that join late would otherwise wait for their whole deadline.
        while len(self._launchers) < len(self.machines) - 1 and time.monotonic() < limit:
            for message in self.receive(timeout=CHECK_INTERVAL):
                if isinstance(message, Join | Ended):
                    self._answer(refusal, message.machine)
        raise refusal.error()

    def _name(self, machines: Iterable[int]) -> str:
        return "; ".join(map(self._mapping.describe, sorted(machines)))
