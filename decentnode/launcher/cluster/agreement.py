"""What all machines agree on before the first round: the run, its handshakes, where it continues."""

import secrets
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import msgspec

from decentnode.communication.security.curve import Credentials
from decentnode.communication.security.signatures import is_vouched
from decentnode.config.loader import MOST_SHOWN
from decentnode.config.settings import FailureSettings
from decentnode.core.text import counted, printable
from decentnode.errors import BadInput, StartError
from decentnode.launcher.state.messages import RUN_STARTS, Join, Presence, Refuse, Start
from decentnode.mapping.base import Mapping
from decentnode.node.checkpoint.node_checkpoints import FROM_THE_START
from decentnode.node.plugin_sources import HASH_LETTERS, difference

MOST_NAMED = 5
MOST_KEYS = 5
"""Settings that are named where machines have different ones."""
MOST_VALUE = MOST_SHOWN + 20
MUST_EQUAL = {
    "digest": "configuration or graph", "dataset": "dataset's content", "run_id": "run to continue",
}  # fmt: skip
SAME_CODE = "put the same files on all machines (failures.allow_different_code: true permits others)"


@dataclass
class StartConditions:
    """What one machine asks of the others: code, configuration, data, signatures, and enough nodes."""

    join: Join
    """What this machine says of itself."""
    mapping: Mapping
    failures: FailureSettings
    credentials: Credentials | None
    news: list[str] = field(default_factory=list)
    """Lines about machines that differ and may."""

    def difference(self, join: Join) -> Refuse | None:
        """Returns the first difference to this machine that refuses another, causes before consequences."""
        here, own = self.join, f"machine {self.join.machine}"
        name = self.mapping.describe(join.machine)
        if here.version != join.version:
            return Refuse(f"{name} has another version: {join.version[:12]}; {own}: {here.version}")
        if code := self._other_code(join):
            if not self.failures.allow_different_code:
                return Refuse(f"{name} has {code}; {SAME_CODE}", is_bad_input=True)
            line = f"{name} has {code}; failures.allow_different_code permits it"
            self.news += [line] if line not in self.news else []
        for key, what in MUST_EQUAL.items():
            expected, found = getattr(here, key), getattr(join, key)
            # A machine that has nothing of the run takes that of the others.
            is_new = key == "run_id" and here.or_resume and join.or_resume and not (expected and found)
            if expected != found and not is_new:
                keys = _other_values(here.settings, join.settings, own) if key == "digest" else ""
                differs = f"another {what}: {found[:12] or 'none'}; {own}: {expected[:12] or 'none'}"
                return Refuse(f"{name} has {differs}{keys}")
        return None

    def _other_code(self, join: Join) -> str:
        """Returns how a machine's code differs from that of this one, as text; empty if it does not."""
        here, own = self.join, f"machine {self.join.machine}"
        if here.torch != join.torch:
            return f"another version of torch: {printable(join.torch[:40])}; {own}: {here.torch}"
        if here.files != join.files:
            length = HASH_LETTERS
            hashes = f"hash {printable(join.package[:length])}; {own}: {here.package[:length]}"
            return f"other code than {own}: {difference(here.files, join.files)} ({hashes})"
        return f"other code than {own}: {files}" if (files := difference(here.code, join.code)) else ""

    def suffices_without(self, missing: Collection[int]) -> bool:
        """Whether the nodes of the other machines are enough (key failures.start)."""
        start, nodes = self.failures.start, self.mapping.num_nodes
        least = nodes if start == "all" else int(start.removeprefix("at_least "))
        return nodes - sum(len(self.mapping.ranks_of(machine)) for machine in missing) >= least

    def objection(self, start: Start) -> str:
        """Returns why this machine does not accept the start; an empty text if it does."""
        sender, machines = f"machine {start.machine}", set(range(len(self.mapping.machines)))
        if not start.presences.keys() | start.addresses.keys() <= machines:
            return f"{sender} names machines that the run does not have"
        absent = machines.intersection(start.absent)
        ranks = {rank for machine in machines - absent for rank in self.mapping.ranks_of(machine)}
        # A handshake of an absent node could only be forged.
        if not start.handshakes.keys() <= (set() if start.late else ranks):
            return f"{sender} passes on words of nodes that are not here"
        if start.late:
            return ""
        if self.join.machine in absent or not self.suffices_without(absent):
            listed = "; ".join(map(self.mapping.describe, sorted(absent)))
            return f"{sender} would start without {listed} (key failures.start)"
        return self.unsigned(start)

    def unsigned(self, start: Start) -> str:
        """Returns a machine whose handshakes have no valid signature; empty if there is none."""
        if not self.credentials or not self.credentials.signers:
            return ""
        for machine in set(range(len(self.mapping.machines))) - set(start.absent):
            ranks = self.mapping.ranks_of(machine)
            handshakes = {rank: content for rank, content in start.handshakes.items() if rank in ranks}
            signature = start.signatures.get(machine, b"")
            if not is_vouched(self.credentials, machine, self.join.digest, handshakes, signature):
                return f"{self.mapping.describe(machine)} has not signed the handshakes of its nodes"
        return ""


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


def agreed(joins: dict[int, Join], mapping: Mapping, absent: list[int]) -> Start:
    """Returns the start of a new run, or of one that resumes after the newest round that all ranks have.

    `joins`: what each machine that is here has said; a run is resumed where one of them has it.
    Raises BadInput where no round suits all.
    """
    joins = dict(sorted(joins.items()))
    # A machine cannot announce handshakes or checkpoints of another one's nodes.
    of_ranks = [(r, join) for machine, join in joins.items() for r in mapping.ranks_of(machine)]
    handshakes = {r: join.handshakes[r] for r, join in of_ranks if r in join.handshakes}
    signatures = {machine: join.signature for machine, join in joins.items() if join.signature}
    addresses = {machine: join.address for machine, join in joins.items() if join.address}
    start = Start(
        secrets.randbits(62) + 1, handshakes, signatures=signatures, absent=absent, addresses=addresses,
        presences=dict.fromkeys(joins, Presence()),
    )  # fmt: skip
    resumed = next((join.run_id for join in joins.values() if join.run_id), "")
    if not resumed:
        return start
    incarnation = max(join.incarnation for join in joins.values())
    if incarnation == RUN_STARTS[-1]:
        raise StartError(f"the run was started again {incarnation} times, the limit")
    # The machine with the longest list took part in every start.
    starts = max((join.starts for join in joins.values()), key=len)
    offers: dict[int, list[int]] = {}
    for rank, join in of_ranks:
        # In starts that this machine missed, the others have discarded later rounds.
        missed = starts[len(join.starts) :]
        offers[rank] = [r for r in join.offers.get(rank, []) if r <= min(missed, default=r)]
    round = newest_of_all(offers, offers)
    new = [machine for machine, join in joins.items() if not join.run_id]
    if new and round == FROM_THE_START and any(max(rounds) > round for rounds in offers.values()):
        # To begin again would discard what the others have saved.
        raise BadInput(
            f"{mapping.describe(new[0])} has nothing of the run that the others resume; restore its "
            "directory, or name another run_dir to begin a new run"
        )
    return msgspec.structs.replace(
        start, run_id=int(resumed, 16), incarnation=incarnation + 1, round=round, starts=[*starts, round]
    )


def newest_of_all(offers: dict[int, list[int]], ranks: Iterable[int]) -> int:
    """Returns the newest round with checkpoints of all ranks; raises BadInput that names missing ones."""
    have = {rank: sorted(set(offers.get(rank, ()))) for rank in ranks}
    shared = set.intersection(*map(set, have.values()))
    if shared:
        return max(shared)
    latest = max((rounds[-1] for rounds in have.values() if rounds), default=None)
    if latest is None:
        raise BadInput("no rank has a checkpoint to resume from")
    lacking = [rank for rank, rounds in have.items() if latest not in rounds]
    listed = {rank: ", ".join(str(round + 1) for round in have[rank]) for rank in lacking[:MOST_NAMED]}
    named = "; ".join(f"rank {rank} has {f'round {own}' if own else 'none'}" for rank, own in listed.items())
    more = f"; and {len(lacking) - MOST_NAMED} more ranks" if len(lacking) > MOST_NAMED else ""
    raise BadInput(
        "there is no round that all ranks have a checkpoint of; "
        f"round {latest + 1} is missing here: {named}{more}"
    )
