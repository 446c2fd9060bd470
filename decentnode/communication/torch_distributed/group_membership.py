"""The members of the process group: how they agree on it, and how it ends.

Each rank sends its capabilities to the lowest rank. That one chooses members and backend, and sends the plan
to all. The group ends for all when the first member is lost: a rank that notices informs the others. From
then on ZeroMQ carries all payloads. What was in flight is requested by the rank that misses it. So the loss
of a rank costs only its own payloads.
"""

import threading
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from decentnode.communication.torch_distributed.messages import (
    Capabilities,
    Closed,
    GroupPlan,
    JoinRequest,
    Note,
)
from decentnode.communication.torch_distributed.process_group import Group, GroupBroken, GroupFactory
from decentnode.core.timeouts import Timeouts
from decentnode.errors import StartError

REQUEST_INTERVAL = 1.0
"""Seconds between two requests to join: the receiver may not have the run id yet."""

Choose = Callable[[dict[int, Capabilities]], GroupPlan]
"""Returns members, backend and reason of the group, or an error, from the capabilities of all ranks."""


class GroupMembership:
    """One rank's part.

    The node's thread forms the group, the socket thread receives notes, and both may end the group.
    """

    def __init__(
        self,
        group_factory: GroupFactory,
        facts: Capabilities,
        post: Callable[[Iterable[int], Note], None],
        abandoned: Callable[[], None],
    ) -> None:
        """`post` sends a note to some ranks, in any thread.

        `abandoned` is called without a lock when payloads in flight must be requested.
        """
        self.rank = group_factory.rank
        self.group: Group | None = None
        """The group that carries payloads; None: ZeroMQ does."""
        self.group_factory = group_factory
        self._facts = facts
        self._post = post
        self._abandoned = abandoned
        self._news = threading.Condition()
        self._candidates: frozenset[int] = frozenset()
        self._joined: dict[int, Capabilities] = {}
        self._lost: set[int] = set()
        self._plan: GroupPlan | None = None
        self._closed = ""
        """Why there is no group any more; empty: there is, or may be."""
        self._is_over = False
        self._thread: threading.Thread | None = None

    # In the node's thread.

    def form(self, candidates: Iterable[int], choose: Choose, seconds: float) -> GroupPlan:
        """Agrees with all candidates on the group and makes it; raises StartError, in one line.

        If a candidate is lost meanwhile, there is no group, and the plan contains the reason.
        """
        with self._news:
            self._candidates = frozenset(candidates)
        # A candidate may have been lost before it was known to be one.
        self.lose(())
        leads = self.rank == min(self._candidates)
        plan = self._draw_up(choose, seconds) if leads else self._request(min(self._candidates), seconds)
        if plan is not None and plan.error:
            raise StartError(plan.error)
        if plan is not None and self.rank in plan.members:
            self._make(plan, seconds)
        with self._news:
            # A rank outside the group ignores its end.
            self._is_over = self._is_over or (plan is not None and self.rank not in plan.members)
            return plan if plan is not None and not self._closed else GroupPlan([], "", self._closed)

    def _request(self, leader: int, seconds: float) -> GroupPlan | None:
        """The leader's plan; None if the group ended before there was one. Raises StartError."""
        limit = Timeouts.group_plan(seconds)
        for _ in range(max(1, round(limit / REQUEST_INTERVAL))):
            self._post([leader], JoinRequest(self._facts))
            with self._news:
                if self._news.wait_for(lambda: self._plan or self._closed, min(REQUEST_INTERVAL, limit)):
                    return self._plan
        raise StartError(f"rank {self.rank}: no plan for the process group within {seconds:.0f} s")

    def _draw_up(self, choose: Choose, seconds: float) -> GroupPlan | None:
        """The plan of the lowest rank, sent to all; None if the group ended before there was one."""
        with self._news:
            self._news.wait_for(lambda: self._closed or not self._missing(), seconds)
            if self._closed:
                return None
            missing, facts = self._missing(), self._joined | {self.rank: self._facts}
        if missing:
            error = f"no message from ranks {missing} about the process group within {seconds:.0f} s"
            plan = GroupPlan([], "", "", error=error)
        else:
            plan = choose({rank: facts[rank] for rank in sorted(self._candidates)})
        if plan.members:
            try:
                address, port = self.group_factory.open_store()
                plan = replace(plan, address=address, port=port)
            except StartError as error:
                plan = GroupPlan([], "", "", error=str(error))
        with self._news:
            # Before the plan is sent: repeated requests to join are answered with it.
            self._plan = plan
        self._post(sorted(self._candidates - {self.rank}), plan)
        return plan

    def _missing(self) -> list[int]:
        """Candidates that have not requested to join."""
        return sorted(self._candidates - self._joined.keys() - {self.rank})

    def _make(self, plan: GroupPlan, seconds: float) -> None:
        """Makes the group, but stops waiting when a member is lost; raises StartError."""
        failures: list[str] = []

        def make() -> None:
            made: Group | None = None
            try:
                made = self.group_factory.make(plan, seconds)
            except GroupBroken as error:
                failures.append(str(error))
            with self._news:
                # The group may have ended while torch was still connecting.
                is_late = bool(self._closed)
                self.group = None if is_late else made
                self._news.notify_all()
            if made is not None and is_late:
                made.abort()

        # A thread, because torch cannot be interrupted while it connects.
        threading.Thread(target=make, name="decentnode-forming", daemon=True).start()
        with self._news:
            is_done = self._news.wait_for(
                lambda: self.group or failures or self._closed, Timeouts.group_formed(seconds)
            )
            if self.group is not None or self._closed:
                return
            self._closed = failures[0] if is_done else "it takes too long"
        why = f"the process group ({plan.backend}) of ranks {plan.members} could not be made"
        raise StartError(f"rank {self.rank}: {why} within {seconds:.0f} s: {self._closed}")

    # In any thread.

    def break_up(self, group: Group, why: str) -> None:
        """Ends `group` for all its members, if it is still in use."""
        with self._news:
            # A late error of a group that has already ended changes nothing.
            is_needed = group is self.group and not self._is_over
        if is_needed:
            self._close(why, announces=True)

    def lose(self, ranks: Iterable[int]) -> None:
        """Records lost ranks; the group ends, or is not formed, if one of them is a member."""
        with self._news:
            self._lost |= set(ranks)
            gone = self._lost & set(self._plan.members if self._plan is not None else self._candidates)
            is_needed = bool(gone) and not self._is_over
        if is_needed:
            self._close(f"rank {min(gone)} is lost", announces=True)

    def leave(self) -> None:
        """Records that this rank needs no group any more."""
        with self._news:
            self._is_over = True

    def close(self, timeout: float) -> None:
        """Ends the thread and the group."""
        self.leave()
        if self._thread is not None:
            self._thread.join(timeout)
        if self.group is not None:
            self.group.abort()
            self.group = None

    def _close(self, why: str, announces: bool) -> None:
        """Ends the group once; another thread aborts it, because that takes time."""
        with self._news:
            if self._closed:
                return
            group, self.group, self._closed = self.group, None, why
            self._news.notify_all()
            if group is not None:
                group.is_broken = True  # what it has not brought is resent on request
        print(f"no process group from here on, ZeroMQ carries all payloads: {why}", flush=True)
        if announces:
            # Before any request, so the others know that the group will not deliver it.
            self._post(sorted(self._candidates - self._lost - {self.rank}), Closed(why))
        if group is not None:
            self._thread = threading.Thread(
                target=self._end, args=(group,), name="decentnode-aborting", daemon=True
            )
            self._thread.start()

    def _end(self, group: Group) -> None:
        group.abort()
        self._abandoned()

    # In the socket thread.

    def hear(self, sender: int, note: JoinRequest | GroupPlan | Closed) -> None:
        """Processes a rank's request to join, the plan of the lowest rank, or the end of the group."""
        match note:
            case JoinRequest():
                with self._news:
                    self._joined[sender] = note.facts
                    # A repeated request means that the first answer was lost or not ready.
                    answer = Closed(self._closed) if self._closed else self._plan
                    self._news.notify_all()
                if answer is not None:
                    self._post([sender], answer)
            case GroupPlan():
                with self._news:
                    self._plan = self._plan or note
                    self._news.notify_all()
            case Closed():
                with self._news:
                    is_over = self._is_over
                    if is_over and self.group is not None:
                        self.group.is_broken = True  # what it has not brought is resent on request
                if not is_over:
                    self._close(note.reason, announces=False)
