"""The rendezvous of all machines before the start, and the messages between launchers after it.

Before the start, machine 0 is the meeting point. Afterwards the training does not need it: nodes exchange
with their neighbors alone, and messages between launchers only serve the view and the summary.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import NoReturn

import msgspec

from decentnode.communication.security.curve import Credentials
from decentnode.communication.security.signatures import is_vouched, vouch
from decentnode.config.loader import MOST_SHOWN
from decentnode.config.settings import FailureSettings
from decentnode.core.clock import AwakeClock
from decentnode.core.streams import print_line
from decentnode.core.text import counted, first_line, printable
from decentnode.core.timeouts import Timeouts
from decentnode.errors import UNDECODABLE, BadInput, DecentnodeError, StartError, explained
from decentnode.launcher.cluster.agreement import agreed
from decentnode.launcher.cluster.channel import MOST_BYTES, Arrival, LauncherChannel
from decentnode.launcher.state.messages import DECODER, Ended, Join, LauncherMessage, Refuse, Start, Wait
from decentnode.mapping.base import Mapping, tcp_endpoint
from decentnode.mapping.reachability import REFUSED, why_unreachable
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
NO_LAUNCHER = "what listens there does not answer: another program, or a run with other links (security)"
NOT_LISTED = (
    " has other keys than this machine; use one set of files from `decentnode keys`, or one secret, on all"
)


def refusal_for(error: BaseException) -> Refuse:
    """Returns what the other machines are told of the error that ends this one."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return Refuse("it was stopped")
    reason = first_line(error) if isinstance(error, DecentnodeError) else explained(error)
    return Refuse(reason[:500], isinstance(error, BadInput))


class Rendezvous:
    """The links between the launchers, through machine 0."""

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
        self._routes: dict[int, bytes] = {}
        self._failures = failures or FailureSettings()
        self._start: Start | None = None
        self._started: dict[int, bytes] = {}
        """By machine the route of the launcher that received the start."""
        self._credentials = credentials
        self._channel: LauncherChannel | None = None
        self.refused: Counter[str] = Counter()
        """Refused connections and messages, by reason."""
        self.news: list[str] = []
        """Lines about machines that differ and may."""
        self._is_over = False
        """Whether the machines have met, or were told that they do not."""
        host = mapping.address(0) if machine else mapping.machines[0].bound
        self._endpoint = tcp_endpoint(host, mapping.rendezvous_port)

    def meet(self, handshakes: dict[int, bytes], deadline: float, is_stopped: Callable[[], bool]) -> Start:
        """Agrees with all machines on the start; raises StartError that names missing or different ones.

        Raises BadInput if a machine has other code. `handshakes`: the handshakes of this machine.
        """
        own_join = msgspec.structs.replace(self._join, handshakes=handshakes)
        self._joins[self.machine] = own_join
        if self._credentials and self._credentials.signers:
            signature = vouch(self._credentials, own_join.digest, own_join.handshakes)
            self._joins[self.machine] = msgspec.structs.replace(own_join, signature=signature)
        self._open()
        self._noticed, self._named = time.monotonic(), set[int]()
        meet = self._attend_rendezvous if self.machine else self._host_rendezvous
        return meet(deadline, is_stopped)

    def part(self, refusal: Refuse) -> None:
        """Tells the other machines why this one ends before all have met; does nothing after that.

        They may not be here yet, so it waits for them for a while.
        """
        if self._is_over:
            return
        seconds = min(Timeouts.early_end, self._failures.start_deadline)
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
        self.send(Ended(self.machine, refusal.reason, refusal.is_bad_input, self._join.job))

    def _after_end(self, refusal: Refuse, machine: int) -> Refuse:
        reason = f"{self._name({machine})} has ended before the run began: {printable(refusal.reason[:500])}"
        return Refuse(reason, refusal.is_bad_input)

    def _open(self) -> None:
        self._channel = LauncherChannel(self._endpoint, self.machine, self._credentials)
        self.refused = self._channel.refused

    def _host_rendezvous(self, deadline: float, is_stopped: Callable[[], bool]) -> Start:
        clock = AwakeClock(CHECK_INTERVAL)
        limit = clock.now() + deadline
        enough_since: float | None = None
        while missing := self._missing():
            # The others must not wait for their deadline.
            if is_stopped():
                self._refuse(Refuse("the run was stopped on machine 0"), Timeouts.launcher_linger)
            now = clock.now()
            # If a machine leaves again, the grace time of the others starts over.
            enough_since = (enough_since or now) if self._suffices(missing) else None
            # Before the deadline counts: at the deadline fewer machines may suffice.
            if enough_since is not None and (now > limit or now - enough_since > self._failures.grace):
                break
            if now > limit:
                listed = ", ".join(f"{reason} {count}" for reason, count in self.refused.items())
                refused = f"; connections that were refused: {listed}" if listed else ""
                what = self._awaited(missing)
                self._refuse(Refuse(f"timed out after {deadline:.0f} s waiting for {what}{refused}"))
            self._notice(missing, limit - now)
            for message in self.receive(timeout=CHECK_INTERVAL):
                if isinstance(message, Ended):
                    self._take_end(message)
                if isinstance(message, Join):
                    if refusal := self._difference(message):
                        self._refuse(refusal)
                    self._joins[message.machine] = message
                    self.send(Wait(sorted(self._missing())), message.machine)
        start = self._agree(sorted(missing))
        if unsigned := self._unsigned(start):
            self._refuse(Refuse(unsigned))
        # From here on a Join on a route in `_started` is a late repetition, not a newcomer.
        self._start, self._started, self._is_over = start, dict(self._routes), True
        self.send(start)
        return start

    def _take_end(self, message: Ended) -> None:
        """Ends the start if it needs a machine that has ended; otherwise that one alone."""
        refusal = self._after_end(Refuse(message.reason, message.is_bad_input), message.machine)
        if self._failures.start == "all":
            self._refuse(refusal)
        self.send(refusal, message.machine)
        self._joins.pop(message.machine, None)
        self._routes.pop(message.machine, None)

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
            self._routes.pop(machine, None)
        return set(self.machines) - self._joins.keys()

    def is_newcomer(self, machine: int) -> bool:
        """Whether a machine's launcher is not the one that received the start."""
        return self._started.get(machine) != self._routes.get(machine)

    def admit(self, join: Join, late: int, absent: list[int], objection: str, seconds: float = 0.0) -> bool:
        """Sends the start to a late machine, or refuses it alone so that it may try again.

        `seconds`: since the start of the run.
        """
        assert self._start is not None, "only machine 0 is asked, after the start"
        own_run = join.run_id in ("", f"{self._start.run_id:016x}")
        run_id = self._join.run_id if own_run else join.run_id
        differs = self._difference(msgspec.structs.replace(join, run_id=run_id))
        if refusal := Refuse(objection) if objection else differs:
            self.send(refusal, join.machine)
            # Its route is free again, so a corrected launcher can join at once.
            del self._routes[join.machine]
            return False
        self._started[join.machine] = self._routes[join.machine]
        self._joins[join.machine] = join
        start = msgspec.structs.replace(
            # A late machine receives no handshakes: its nodes rejoin without them.
            self._start, handshakes={}, signatures={}, absent=absent, late=late, seconds=seconds
        )  # fmt: skip
        self.send(start, join.machine)
        return True

    def _attend_rendezvous(self, deadline: float, is_stopped: Callable[[], bool]) -> Start:
        clock = AwakeClock(CHECK_INTERVAL)
        limit, next_join = clock.now() + deadline, 0.0
        absent = {0}
        while (now := clock.now()) < limit and not is_stopped():
            # Repeated, because machine 0 may start later, and counts silent machines as missing.
            if now >= next_join:
                self.send(self._joins[self.machine])
                next_join = now + JOIN_INTERVAL
            self._notice(absent, limit - now)
            for message in self.receive(timeout=CHECK_INTERVAL):
                match message:
                    case Start():
                        self._is_over = True
                        # Machine 0 is not trusted blindly: signatures and quorum are checked here, too.
                        if wrong := self._objection(message):
                            raise StartError(wrong)
                        return message
                    case Refuse():
                        self._is_over = True
                        raise message.error("machine 0: ")
                    case Wait():
                        absent = set(message.missing)
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
        first, port = min(machines), self._mapping.rendezvous_port
        why = why_unreachable(self._mapping.address(first), port, Timeouts.reach)
        if first == 0:
            return f"{self._name(machines)} at {self._endpoint}: {why or NO_LAUNCHER}"
        # Only machine 0 listens at that port.
        return self._name(machines) + (f"; machine {first}: {why}" if why not in ("", REFUSED) else "")

    def send(self, message: LauncherMessage, to: int | None = None) -> int:
        """Sends to machine 0, or from there to one machine or all; returns the bytes. Never waits."""
        if self._channel is None:
            return 0
        content = msgspec.msgpack.encode(message)
        routes = [b""] if self.machine else [r for m, r in self._routes.items() if to in (None, m)]
        return len(content) * sum(self._channel.send(content, route) for route in routes)

    @property
    def descriptors(self) -> list[int]:
        """What a thread polls while `has_messages` is False."""
        return self._channel.descriptors if self._channel else []

    @property
    def has_messages(self) -> bool:
        """Whether `receive` would return a message."""
        return self._channel is not None and self._channel.has_messages

    def receive(self, timeout: float = 0.0) -> list[LauncherMessage]:
        """Returns messages of the other machines; waits at most `timeout` seconds for the first."""
        messages: list[LauncherMessage] = []
        channel, room = self._channel, MOST_AT_ONCE * MOST_BYTES
        if channel is None or not channel.wait(timeout):
            return messages
        # A machine that sends without a pause must not occupy the launcher.
        while room > 0 and (arrival := channel.receive()) is not None:
            room -= len(arrival.content) + LEAST_BYTES
            if (message := self._read(channel, arrival)) is not None:
                messages.append(message)
        return messages

    def _read(self, channel: LauncherChannel, arrival: Arrival) -> LauncherMessage | None:
        """Returns the decoded message; None if it is refused."""
        try:
            message: LauncherMessage = DECODER.decode(arrival.content)
        except UNDECODABLE:
            channel.refused["note"] += 1
            return None
        machine = getattr(message, "machine", 0)
        # The key decides: a machine cannot write in another one's name.
        if arrival.machine not in (None, machine):
            channel.refused["identity"] += 1
            return None
        if isinstance(message, Join | Ended) and arrival.route and message.job != self._join.job:
            here, there = (join.job or "no job of torchrun or Slurm" for join in (self._join, message))
            refusal = Refuse(f"machine {machine} is of another job: {there}; this port has one of {here}")
            channel.send(msgspec.msgpack.encode(refusal), arrival.route)
            channel.refused["another job"] += 1
            return None
        known = machine in self.last_received and machine != self.machine
        is_here = machine in self._joins and machine != 0
        if isinstance(message, Ended) and self._start is not None:
            # It ends before it could join late; the run goes on without it, and nothing waits for its nodes.
            refusal = Refuse("the run has begun without this machine")
            channel.send(msgspec.msgpack.encode(refusal), arrival.route)
            return None
        if self.machine == 0 and not is_here and not isinstance(message, Join | Ended):
            channel.refused["another start"] += 1  # a launcher of this run before machine 0 was resumed
            return None
        if not known or not self._keeps_route(channel, machine, arrival.route):
            return None
        # Only accepted messages count: a second launcher must not keep a dead one alive.
        self.last_received[machine] = time.monotonic()
        return message

    def _keeps_route(self, channel: LauncherChannel, machine: int, route: bytes) -> bool:
        """Records a machine's route; False, and a refusal, for a second launcher of a live machine."""
        if not route:
            return True
        known = self._routes.setdefault(machine, route)
        if known != route and time.monotonic() - self.last_received[machine] < Timeouts.machine_twin:
            reason = f"machine {machine} is here already; was it started twice, or with the wrong machine=?"
            channel.send(msgspec.msgpack.encode(Refuse(reason)), route)
            return False
        self._routes[machine] = route
        return True

    def close(self) -> None:
        """Delivers what was sent within two seconds, and closes the socket."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _difference(self, join: Join) -> Refuse | None:
        """Returns the first difference to machine 0 that refuses a machine, causes before consequences."""
        name, own_join = self._name({join.machine}), self._join
        if own_join.version != join.version:
            return Refuse(f"{name} has another version: {join.version[:12]}; machine 0: {own_join.version}")
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
                keys = _other_values(own_join.settings, join.settings) if field == "digest" else ""
                differs = f"another {_WORDS[field]}: {there[:12] or 'none'}; machine 0: {here[:12] or 'none'}"
                return Refuse(f"{name} has {differs}{keys}")
        return None

    def _other_code(self, join: Join) -> str:
        """Returns how a machine's code differs from that of this one, as text; empty if it does not."""
        here = self._join
        if here.torch != join.torch:
            return f"another version of torch: {printable(join.torch[:40])}; machine 0: {here.torch}"
        if here.files != join.files:
            length = HASH_LETTERS
            hashes = f"hash {printable(join.package[:length])}; machine 0: {here.package[:length]}"
            return f"other code than machine 0: {difference(here.files, join.files)} ({hashes})"
        return f"other code than machine 0: {files}" if (files := difference(here.code, join.code)) else ""

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

    def _refuse(self, refusal: Refuse, seconds: float | None = None) -> NoReturn:
        """Sends a refusal to every machine, also to those that join within the next seconds."""
        self._is_over = True
        limit = time.monotonic() + (Timeouts.refusal if seconds is None else seconds)
        self.send(refusal)
        # Machines that join late would otherwise wait for their whole deadline.
        while len(self._routes) < len(self.machines) - 1 and time.monotonic() < limit:
            for message in self.receive(timeout=CHECK_INTERVAL):
                if isinstance(message, Join | Ended):
                    self.send(refusal, message.machine)
        raise refusal.error()

    def _name(self, machines: Iterable[int]) -> str:
        return "; ".join(map(self._mapping.describe, sorted(machines)))


def _other_values(here: dict[str, str], there: dict[str, str]) -> str:
    """Returns a line for each setting with different values on two machines, with both of them."""
    keys = sorted(key for key in {*here, *there} if here.get(key) != there.get(key))
    lines = [
        f"\n  {printable(key[:100])}: {printable(there.get(key, 'none')[:MOST_VALUE])}; "
        f"machine 0: {here.get(key, 'none')}"
        for key in keys[:MOST_KEYS]
    ]
    more = f"\n  and {counted(len(keys) - MOST_KEYS, 'more setting')}" if len(keys) > MOST_KEYS else ""
    return "".join(lines) + more
