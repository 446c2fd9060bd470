"""Who is in the process group: how its members agree on the first one, and on another when one is lost.

Every rank tells all others that it would take part, and in which exchange it is; from there on it begins
none. The lowest rank that lives draws up the plan: who is in, and after which exchange the new group begins,
the latest that any of them has begun. Up to that one everything goes by ZeroMQ, as does what was under way
in the group before and did not arrive: whoever misses it asks for it. So the loss of a rank costs its own
payloads alone.
"""

import threading
import time
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from decentnode.communication.exchange.handle import Key
from decentnode.communication.torch_distributed.messages import Capabilities, GroupPlan, JoinRequest, Note
from decentnode.communication.torch_distributed.process_group import Group, GroupBroken, GroupFactory
from decentnode.errors import RunFailed, StartError

MOST_ATTEMPTS = 8
"""Groups that are tried after a loss before the ranks go on without any."""
LOOK_AGAIN = 0.2
NCCL_SECONDS = 60.0
"""For making a group after a loss, at least: all its members have answered, and a further loss ends it."""
LONGEST_PAUSE = 120.0
"""Seconds for which a node begins no exchange because a group is being made; then it gives up the run."""
BEFORE_ANY: Key = (-1, 0, 0)

Choose = Callable[[dict[int, Capabilities]], GroupPlan]
"""Members, backend and reason of the first group, or an error, by what the ranks say of themselves."""


class GroupMembership:
    """One rank's part.

    The node's thread enters exchanges, that of the sockets brings news, a third one makes groups.
    """

    def __init__(
        self,
        workshop: GroupFactory,
        facts: Capabilities,
        post: Callable[[Iterable[int], Note], None],
        patience: float,
    ) -> None:
        """`post` sends a note to some ranks; `patience`: seconds that a silent rank is waited for."""
        self.rank = workshop.rank
        self.group: Group | None = None
        """What carries the exchange that was entered last, or will the next; None: ZeroMQ does."""
        self.plan: GroupPlan | None = None
        self.abandoned: Callable[[], None] = lambda: None
        """Called, in no lock, when what was under way in the group has to be asked for."""
        self.blocked: Callable[[Iterable[int], Key], None] = lambda ranks, key: None
        """Tells ranks that this one lives, and waits after that exchange."""
        self.workshop = workshop
        self._facts = facts
        self._post = post
        self._patience = patience
        self._news = threading.Condition()
        self._generation = 0
        self._candidates: frozenset[int] = frozenset()
        self._absent: set[int] = set()
        self._joined: dict[int, JoinRequest] = {}
        self._next: GroupPlan | None = None
        """What was drawn up for the generation that is being formed."""
        self._announced: JoinRequest | None = None
        self._begun: Key | None = None
        self._is_forming = False
        self._is_over = False
        self._thread: threading.Thread | None = None

    # The node's thread.

    def form_first(self, candidates: Iterable[int], choose: Choose, seconds: float) -> GroupPlan:
        """Agrees with all candidates on the first group and makes it; raises StartError, in one line.

        When one of its members ends in the meantime, another is made without it.
        """
        with self._news:
            self._candidates, self._generation, self._is_forming = frozenset(candidates), 1, True
        while True:
            plan = self._agree(seconds, choose)
            if plan is None:
                raise StartError(f"rank {self.rank}: no plan for the process group within {seconds:.0f} s")
            if plan.error:
                raise StartError(plan.error)
            try:
                if self._settle(plan, self._make_unless_lost(plan, seconds)):
                    return plan
            except GroupBroken as error:
                why = f"the process group ({plan.backend}) of ranks {plan.members} could not be made"
                raise StartError(f"rank {self.rank}: {why} within {seconds:.0f} s: {error}") from error
            self._try_again(plan)

    def _make_unless_lost(self, plan: GroupPlan, seconds: float) -> Group | None:
        """As `_make`, but waits for nobody who is gone: then the plan is out of date."""
        ends: list[Group | Exception | None] = []
        is_awaited = True

        def make() -> None:
            end: Group | Exception | None
            try:
                end = self._make(plan, seconds)
            except (GroupBroken, StartError) as error:
                end = error
            with self._news:
                ends.append(end)
                self._news.notify_all()
            if isinstance(end, Group) and not is_awaited:
                end.abort()

        threading.Thread(target=make, name="decentnode-forming", daemon=True).start()
        with self._news:
            self._news.wait_for(lambda: ends or self._is_outdated(plan), seconds + LOOK_AGAIN)
            is_awaited = bool(ends)
            if not ends and not self._is_outdated(plan):
                raise GroupBroken("it takes too long")
        end = ends[0] if is_awaited else None
        if isinstance(end, Exception) and not self._is_outdated(plan):
            raise end
        return None if isinstance(end, Exception) else end

    def _is_outdated(self, plan: GroupPlan) -> bool:
        return plan.generation < self._generation or not self._absent.isdisjoint(plan.members)

    def enter(self, key: Key) -> Group | None:
        """Begins an exchange, and says which group carries it; waits while one is being made."""
        with self._news:
            if not self._news.wait_for(lambda: self._may_begin(key), LONGEST_PAUSE):
                raise RunFailed(
                    f"rank {self.rank}: the process group was not made anew in {LONGEST_PAUSE:.0f} s"
                )
            self._begun = key
            carries = not self._is_forming and self.plan is not None and key > (self.plan.after or BEFORE_ANY)
            return self.group if carries else None

    def _may_begin(self, key: Key) -> bool:
        planned = self._next is not None and key <= (self._next.after or BEFORE_ANY)
        return not self._is_forming or planned

    # Any thread.

    def break_up(self, group: Group, why: str) -> None:
        """Gives a group up and makes another one among those who are left, in a thread of its own."""
        with self._news:
            if group is self.group and not self._is_over:
                print(f"the process group is given up: {why}", flush=True)
                self._begin_forming(self._generation + 1)

    def lose(self, ranks: Iterable[int]) -> None:
        """These take part in no group any more; what is under way in this one ends if it has them."""
        with self._news:
            self._absent |= set(ranks)
            self._news.notify_all()
            group = self.group
        if group is not None and not self._absent.isdisjoint(group.members):
            self.break_up(group, f"rank {min(self._absent & set(group.members))} is gone")

    def leave(self) -> None:
        """This rank needs no group any more, and says so to whoever makes one."""
        with self._news:
            self._is_over = True
            self._news.notify_all()

    def close(self, timeout: float) -> None:
        """Ends the thread and the group."""
        self.leave()
        if self._thread is not None:
            self._thread.join(timeout)
        if self.group is not None:
            self.group.abort()
            self.group = None

    # The thread of the sockets.

    def hear_joining(self, sender: int, note: JoinRequest) -> None:
        """A rank would take part in a group."""
        answer: Note | None = None
        with self._news:
            if self._is_over:
                if self.group is not None and note.generation > self.group.generation:
                    self.group.is_broken = True  # what it has not brought is asked for
                answer = JoinRequest(note.generation, None, [self.rank], self._facts)
            elif self.plan is not None and not self._is_forming and note.generation <= self._generation:
                answer = self.plan  # that was made without the sender
            else:
                self._note_joining(sender, note)
        if answer is not None and self.rank not in note.absent:
            self._post([sender], answer)

    def hear_plan(self, sender: int, plan: GroupPlan) -> None:
        """A rank has drawn up the next group."""
        with self._news:
            if not self._is_over and self._is_forming and plan.generation >= self._generation:
                self._generation, self._next = plan.generation, plan
                self._news.notify_all()

    def _note_joining(self, sender: int, note: JoinRequest) -> None:
        known = self._joined.get(sender)
        if known is None or note.generation >= known.generation:
            self._joined[sender] = note
        self._absent |= set(note.absent) - {self.rank}
        if note.generation > self._generation and self._candidates:
            if self._is_forming:
                self._generation, self._next = note.generation, None
            else:
                self._begin_forming(note.generation)
        self._news.notify_all()

    # With the lock held.

    def _begin_forming(self, generation: int) -> None:
        before, self.group = self.group, None
        if before is not None:
            self._candidates = frozenset(before.members)
        self._generation, self._next, self._is_forming, self._announced = generation, None, True, None
        self._thread = threading.Thread(
            target=self._form_again, args=(before,), name="decentnode-forming", daemon=True
        )
        self._thread.start()

    def _missing(self) -> list[int]:
        """Who has not said yet that it takes part."""
        here = {rank for rank, note in self._joined.items() if note.generation == self._generation}
        return sorted(self._candidates - self._absent - here - {self.rank})

    def _joining(self) -> JoinRequest:
        return JoinRequest(self._generation, self._begun, sorted(self._absent), self._facts)

    # The thread that makes groups.

    def _form_again(self, before: Group | None) -> None:
        if before is not None:
            before.abort()
        self.abandoned()
        for _ in range(MOST_ATTEMPTS):
            plan = self._agree(self._patience, self._without_the_absent)
            if plan is None:
                break
            least = NCCL_SECONDS if plan.backend == "nccl" else 1.0
            try:
                made = self._make_unless_lost(plan, max(self._patience, least))
            except (GroupBroken, StartError) as error:
                print(f"the process group of ranks {plan.members} was not made: {error}", flush=True)
                self._try_again(plan)
                continue
            if self._settle(plan, made):
                return
            self._try_again(plan)
        self._settle(None, None)

    def _agree(self, seconds: float, choose: Choose) -> GroupPlan | None:
        """The plan for the next group; None when this rank needs none any more, or hears of none.

        Ranks that stay silent for `seconds` are left out; so is one that should have drawn the plan up.
        """
        limit = time.monotonic() + seconds
        while not self._is_over:
            self._announce()
            with self._news:
                if self._next is not None:
                    return self._next
                now, leads = time.monotonic(), self._leader == self.rank
                is_due = leads and (not self._missing() or now >= limit)
                if not is_due and now >= limit + seconds:
                    if not self._joined and self.plan is None:
                        return None
                    self._absent.add(self._leader)
                    limit = now
                if not is_due:
                    self._news.wait(LOOK_AGAIN)
            if is_due:
                plan = self._draw_up(choose, seconds)
                if plan is not None:
                    return plan
                limit = time.monotonic() + seconds
        return None

    @property
    def _leader(self) -> int:
        return min((self._candidates - self._absent) | {self.rank})

    def _announce(self) -> None:
        """Says what has changed, to all who may take part; while it lasts, that this rank is only held up."""
        with self._news:
            own = self._joining()
            # At first nobody is lost, and nobody but the leader needs to know.
            audience = self._candidates - self._absent if self._generation > 1 else {self._leader}
            ranks = sorted(audience - {self.rank})
        if own != self._announced:
            self._announced = own
            self._post(ranks, own)
        elif own.begun is not None:
            self.blocked(ranks, own.begun)

    def _draw_up(self, choose: Choose, seconds: float) -> GroupPlan | None:
        """The plan that this rank has made, or one that has come; None when it is of no use any more."""
        with self._news:
            missing, absent, generation = self._missing(), set(self._absent), self._generation
            joined = {r: n for r, n in self._joined.items() if n.generation == generation and r not in absent}
            joined[self.rank] = self._joining()
            begun = [note.begun for note in joined.values() if note.begun is not None]
        if missing and self.plan is None:
            error = f"no word from ranks {missing} about the process group within {seconds:.0f} s"
            plan = GroupPlan(generation, [], None, "", "", error=error)
        else:
            plan = choose({rank: joined[rank].facts for rank in sorted(joined)})
            plan = replace(plan, generation=generation, after=max(begun, default=None))
        if len(plan.members) > 1:
            plan = self._at_a_place(plan)
        self._post(sorted(self._candidates - absent - {self.rank}), plan)
        with self._news:
            if self._generation != generation:
                return self._next
            self._next = plan
        return plan

    def _at_a_place(self, plan: GroupPlan) -> GroupPlan:
        try:
            address, port = self.workshop.open_store()
        except StartError as error:
            return replace(plan, error=str(error), members=[])
        return replace(plan, address=address, port=port)

    def _without_the_absent(self, facts: dict[int, Capabilities]) -> GroupPlan:
        assert self.plan is not None, "the first group has been made"
        return GroupPlan(0, sorted(facts), None, self.plan.backend, self.plan.reason)

    def _make(self, plan: GroupPlan, seconds: float) -> Group | None:
        needed = self.rank in plan.members and len(plan.members) > 1
        return self.workshop.make(plan, seconds) if needed else None

    def _try_again(self, plan: GroupPlan) -> None:
        """What comes after a plan that was of no use."""
        with self._news:
            if self._generation <= plan.generation:
                self._generation, self._next = plan.generation + 1, None

    def _settle(self, plan: GroupPlan | None, group: Group | None) -> bool:
        """Goes on with that group; false when another generation has begun in the meantime."""
        with self._news:
            if plan is not None and self._is_outdated(plan):
                if group is not None:
                    group.abort()
                return False
            again = self.plan is not None
            self.plan, self.group = plan or self.plan, group
            self._is_forming = False
            self._news.notify_all()
        if again:
            among = f"ranks {list(group.members)}" if group is not None else "nobody: by ZeroMQ"
            print(f"goes on with a process group of {among}", flush=True)
        return True
