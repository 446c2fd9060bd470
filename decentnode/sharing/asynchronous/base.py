"""The asynchronous counterpart of `Sharing`: a scheme that reacts to messages, and to its own local steps.

A node calls it in any order of events: a message has arrived, a local step begins or has ended, a peer is
lost or back. The order alone decides about the models, so a recorded order gives the same bits again. Time
has two effects: `may_step` delays a step, and `resend` sends old messages once more. Neither changes a
model. What a scheme does because some time is over, or because of what its steps have taken, is an event,
too: `advance_timer` says when, and `on_timer` does it.

A step that takes virtual time begins with `before_step` and ends with the change of the model and
`after_step`. Messages arrive meanwhile, as they do at a real node whose step runs beside its receiver.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from math import inf
from typing import ClassVar, NamedTuple

from torch import Tensor

from decentnode.core.payload import NotFinite, Payload, PayloadError
from decentnode.core.registry import name_of
from decentnode.core.rng import generator
from decentnode.core.vector import is_finite
from decentnode.errors import BadInput
from decentnode.graph.base import View
from decentnode.sharing.base import Promises, SharingBase
from decentnode.transforms.base import Context
from decentnode.transforms.chain import Chain


class PeerMessage(NamedTuple):
    """A message of a peer."""

    source: int
    tag: int
    """The kind of message in the scheme; it decides about the layout of the payload."""
    number: int
    """The number that the sender gives it, ascending for each tag."""
    payload: Payload


class Post(NamedTuple):
    """A message to send; its payload is never written again."""

    target: int
    tag: int
    number: int
    payload: Payload


Posts = Sequence[Post]
LOOK_INTERVAL = 0.05
"""Seconds between two looks at a scheme that decides by the clock, and does not say when (`due`)."""


class AsyncSharing(SharingBase):
    """One asynchronous scheme on one node. It changes the model in place, between two local steps."""

    asynchronous: ClassVar[bool] = True
    # A process that starts again would have lost its numbers, and what it owes to its peers.
    promises = Promises(allows_rejoin=False, sends_one_payload=False, wire="C(d) per message")
    state: ClassVar[tuple[str, ...]] = ("_latest", "_steps")

    _latest: dict[tuple[int, int], int]
    """The highest number so far by (source, tag)."""
    _steps: int
    """The local steps so far, which number the messages; a scheme adds 1 in `after_step` or `before_step`."""
    _lost: tuple[int, ...] = ()

    def begin(self, vector: Tensor) -> None:
        super().begin(vector)
        self._latest, self._steps = {}, 0

    def check_chain(self, chain: Chain) -> None:
        for index, transform in enumerate(chain.stages):
            if transform.remembers and not self.promises.sends_one_payload:
                raise BadInput.at(
                    f"transforms[{index}]",
                    f"{name_of(transform)} remembers what it has sent to all, but "
                    f"{name_of(self)} sends each message to one peer; leave it out",
                )
            if transform.counts_rounds:
                # Numbers of messages may all be even, so that one of two fragments would never be sent.
                what = f"{name_of(transform)} counts rounds, and messages of {name_of(self)} have none"
                raise BadInput.at(f"transforms[{index}]", f"{what}; leave it out")

    @property
    def tags(self) -> int:
        """Tags are 0 to this number less one, by default `promises.phases`; others are refused.

        `payload_layout` is asked for the layout of each tag.
        """
        return self.promises.phases

    @property
    def burst(self) -> int:
        """The most messages to one peer at once."""
        return 1

    def before_step(self, vector: Tensor, view: View) -> Posts:
        """Is called when a local step begins; may change the model, shape (d,).

        In virtual time messages may arrive until the step ends. A node that resumes begins its step again.
        """
        return ()

    @abstractmethod
    def after_step(self, vector: Tensor, view: View) -> Posts:
        """Is called after each local step of the model, shape (d,); may change it."""

    def answer_repeated(self, message: PeerMessage) -> Posts | None:
        """Returns the answer to a message already used, or older than one that was; None: it is new."""
        return () if message.number <= self._latest.get(message[:2], -1) else None

    def receive(self, vector: Tensor, message: PeerMessage, view: View) -> Posts:
        """Uses a new message; may change the model, and answer."""
        self._latest[message[:2]] = message.number
        try:
            context = self.message_context(
                message.source, view.rank, message.tag, number=message.number, view=view
            )
            signal = self.chain.decode(message.payload, context.filled_with(self.fill_for(message, vector)))
            if not is_finite(signal):
                raise NotFinite(f"its {self.flaw_of(signal)}")
        except PayloadError as error:
            self.refuse(message.source, view, error)
            return ()
        return self.use(vector, message, signal, view=view)

    @abstractmethod
    def use(self, vector: Tensor, message: PeerMessage, signal: Tensor, view: View) -> Posts:
        """Uses the signal of a new message, decoded and finite; a copy is needed to keep it."""

    def fill_for(self, message: PeerMessage, vector: Tensor) -> Tensor | None:
        """Returns what replaces the coordinates that a transform did not send; None: zeros."""
        return vector

    def may_step(self, now: float) -> bool:
        """Whether the next local step may begin, by a clock in seconds."""
        return True

    @property
    def awaited(self) -> Iterable[int]:
        """Peers with a request that is not answered; the node waits for them for its deadline at most."""
        return ()

    def resend(self, now: float) -> Posts:
        """Returns messages to send once more, by a clock in seconds, and counts them as sent."""
        return ()

    def measured(self, seconds: float) -> None:
        """Receives what the last step has taken, with its pace; decisions of the timer alone may use it.

        Is called after `after_step`, but not in a replay.
        """

    def advance_timer(self, now: float) -> bool:
        """Starts what the scheme times; returns whether `on_timer` is to be called now.

        By a clock in seconds. Not called in a replay.
        """
        return False

    def on_timer(self, vector: Tensor, view: View) -> Posts:
        """Does what was to be done then; may change the model, shape (d,)."""
        return ()

    def due(self, now: float) -> float:
        """When `may_step`, `resend` or `advance_timer` may return something else by the clock alone.

        Infinity: never.
        """
        hooks = (AsyncSharing.may_step, AsyncSharing.resend)
        reads_clock = (type(self).may_step, type(self).resend) != hooks
        return now + LOOK_INTERVAL if reads_clock else inf

    def on_peer_lost(self, rank: int) -> None:
        self._lost = (*self._lost, rank)

    def on_peer_back(self, rank: int) -> None:
        self._lost = tuple(peer for peer in self._lost if peer != rank)

    def live_targets(self, view: View) -> list[int]:
        """The targets that are not lost, ascending."""
        return [j for j in view.targets if j not in self._lost]

    def draw_targets(self, view: View, count: int, *purpose: int) -> list[int]:
        """Draws so many different live targets for this step, or returns all."""
        live = self.live_targets(view)
        draw = generator(self.setup.seed, "partner", view.rank, self._steps, *purpose)
        return [live[k] for k in draw.choice(len(live), size=min(count, len(live)), replace=False)]

    def message_context(self, sender: int, receiver: int, tag: int, number: int, view: View) -> Context:
        # The number stands for the round: no two messages share their random choices.
        one_receiver = receiver if self.chain.per_receiver else None
        return view.context(sender, one_receiver, phase=tag, number=number)

    def posts(
        self, signal: Tensor, targets: Iterable[int], view: View, tag: int = 0, number: int | None = None
    ) -> list[Post]:
        """The messages with a copy of this signal; number: the steps so far unless given."""
        number, copy = self._steps if number is None else number, signal.clone()
        posts: list[Post] = []
        for target in targets:
            if not posts or self.chain.per_receiver:
                payload = self.chain.encode(
                    copy, self.message_context(view.rank, target, tag, number=number, view=view)
                )
            posts.append(Post(target, tag, number, payload=payload))
        return posts
