"""The members of the process group: how they agree on it, and how it ends.

All ranks announce their capabilities in a store, and compute the same plan from them. The group ends for all
when the first member is lost: a rank that notices informs the others. From then on ZeroMQ carries all
payloads. What was in flight is requested by the rank that misses it. So the loss of a rank costs only its own
payloads.

Threads: the thread that opens the transport waits while another one forms the group; the node's and the
socket thread may end it, and a thread of its own aborts it.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from decentnode.communication.torch_distributed.backend_choice import GroupPlan
from decentnode.communication.torch_distributed.messages import Closed
from decentnode.communication.torch_distributed.process_group import Group, GroupFactory
from decentnode.core.timeouts import Timeouts
from decentnode.errors import StartError


@dataclass(eq=False)
class GroupMembership:
    """One rank's part.

    The node's thread waits while the group is formed, the socket thread receives messages, both may end it.
    """

    rank: int
    post: Callable[[Iterable[int], Closed], None]
    """Sends a message to some ranks, in any thread."""
    abandoned: Callable[[], None]
    """Called without a lock when payloads in flight must be requested."""
    group: Group | None = field(default=None, init=False)
    """The group that carries payloads; None: ZeroMQ does."""
    _news: threading.Condition = field(default_factory=threading.Condition, init=False)
    _members: frozenset[int] = field(default=frozenset(), init=False)
    """The ranks of the group; until there is a plan, all ranks that may belong to it."""
    _lost: set[int] = field(default_factory=set, init=False)
    _plan: GroupPlan | None = field(default=None, init=False)
    """Set when this rank has its group, or is outside it."""
    _error: str = field(default="", init=False)
    """Why the start fails."""
    _closed: str = field(default="", init=False)
    """Why there is no group any more; empty: there is, or may be."""
    _is_over: bool = field(default=False, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    # In the node's thread.

    def form(self, group_factory: GroupFactory, seconds: float) -> GroupPlan:
        """Agrees with all candidates on the group and makes it; raises StartError, in one line.

        If a candidate is lost meanwhile, there is no group, and the plan contains the reason.
        """
        # Kept: its store, which others may still read, closes when nothing refers to it.
        self._group_factory = group_factory
        with self._news:
            self._members = frozenset(group_factory.rendezvous.ranks)
        # A candidate may have been lost before it was known to be one.
        self.note_lost(())
        # A thread, because torch cannot be interrupted while it connects.
        threading.Thread(
            target=self._make, args=(group_factory, seconds), name="decentnode-forming", daemon=True
        ).start()
        with self._news:
            self._news.wait_for(
                lambda: self._plan or self._error or self._closed, Timeouts.group_formed(seconds)
            )
            if not self._error and self._closed:
                return GroupPlan([], "", self._closed)
            if not self._error and self._plan is not None:
                return self._plan
            why = self._error or f"rank {self.rank}: no process group within {seconds:.0f} s"
            # What torch still connects is aborted.
            self._closed = why
        # All fail alike: none continues because this rank ends.
        self.post(sorted(self._members - {self.rank}), Closed(why, fails_start=True))
        raise StartError(why)

    def _make(self, group_factory: GroupFactory, seconds: float) -> None:
        """Makes the group, but drops it when a member was lost meanwhile."""
        made: Group | None = None
        try:
            plan = group_factory.plan(seconds)
            is_member = self.rank in plan.members
            with self._news:
                self._members = frozenset(plan.members)
                # A rank outside the group ignores its end.
                self._is_over = self._is_over or not is_member
            if is_member:
                made = group_factory.make(plan, seconds)
        except StartError as error:
            with self._news:
                self._error = self._error or str(error)
                self._news.notify_all()
            return
        with self._news:
            is_late = bool(self._closed)
            self.group, self._plan = (None if is_late else made), plan
            self._news.notify_all()
        if made is not None and is_late:
            made.abort()

    # In any thread.

    def break_up(self, group: Group, why: str) -> None:
        """Ends `group` for all its members, if it is still in use."""
        # A late error of a group that has already ended changes nothing.
        if group is self.group:
            self._close(why, announces=True)

    def note_lost(self, ranks: Iterable[int]) -> None:
        """Records lost ranks; the group ends, or is not formed, if one of them is a member."""
        with self._news:
            self._lost |= set(ranks)
            lost_members = self._lost & self._members
        if lost_members:
            self._close(f"rank {min(lost_members)} is lost", announces=True)

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
        """Ends the group once, if it is still in use; another thread aborts it, because that takes time."""
        with self._news:
            if self._closed or self._is_over:
                return
            group, self.group, self._closed = self.group, None, why
            self._news.notify_all()
            if group is not None:
                group.is_broken = True  # what it has not brought is resent on request
        print(f"no process group from here on, ZeroMQ carries all payloads: {why}", flush=True)
        if announces:
            # Before any request, so the others know that the group will not deliver it.
            self.post(sorted(self._members - self._lost - {self.rank}), Closed(why))
        if group is not None:
            self._thread = threading.Thread(
                target=self._end, args=(group,), name="decentnode-aborting", daemon=True
            )
            self._thread.start()

    def _end(self, group: Group) -> None:
        group.abort()
        self.abandoned()

    # In the socket thread.

    def receive(self, closed: Closed) -> None:
        """Processes the end of the group at another rank."""
        with self._news:
            if closed.fails_start and self._plan is None:
                self._error = self._error or closed.reason
                self._news.notify_all()
                return
            if self._is_over and self.group is not None:
                self.group.is_broken = True  # what it has not brought is resent on request
        self._close(closed.reason, announces=False)
