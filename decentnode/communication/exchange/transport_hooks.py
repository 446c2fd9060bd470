"""What the mailbox of a node has its transport do; a transport leaves out what it has no need of."""

from collections.abc import Callable
from dataclasses import dataclass, field

from decentnode.communication.exchange.handle import ExchangeHandle, Key


@dataclass
class MailboxTransport:
    """By default nothing is done."""

    send_again: Callable[[int, Key], bool] = lambda peer, key: False
    """Sends a peer once more what it misses in an exchange; false when that was never sent."""
    ask_for: Callable[[int, Key], None] = lambda peer, key: None
    """Asks a peer for what it has sent in an exchange and was lost on the way."""
    look: Callable[[], None] | None = None
    """Has another thread do what is due for the node while it waits; None where nothing is ever lost."""
    make_void: Callable[[int], None] = lambda peer: None
    """Says to a peer that is given up that what it was sent may be written again."""
    give_model: Callable[[], None] = lambda: None
    """Gives this node's model to those that want it."""
    wanted: set[int] = field(default_factory=set)
    """Peers that have asked for this node's model."""
    attend: Callable[[ExchangeHandle, float], bool] | None = None
    """Waits for an exchange and takes in what comes by itself; None: another thread takes it in."""
