"""What a mailbox needs from its transport; a transport sets only the hooks it needs."""

from collections.abc import Callable
from dataclasses import dataclass, field

from decentnode.communication.exchange.handle import ExchangeHandle, Key


@dataclass
class MailboxTransport:
    """Hooks that do nothing by default."""

    send_again: Callable[[int, Key], bool] = lambda peer, key: False
    """Resends a payload to a peer; False when nothing was sent to it in that exchange."""
    ask_for: Callable[[int, Key], None] = lambda peer, key: None
    """Requests a peer's lost payload of an exchange."""
    look: Callable[[], None] | None = None
    """Makes another thread do what is due while the node waits; None where no message can be lost."""
    make_void: Callable[[int], None] = lambda peer: None
    """Invalidates, for a peer that timed out, the memory it may still read."""
    give_model: Callable[[], None] = lambda: None
    """Sends this node's model to the peers that requested it."""
    wanted: set[int] = field(default_factory=set)
    """Peers that have requested this node's model."""
    attend: Callable[[ExchangeHandle, float], bool] | None = None
    """Waits for an exchange and receives by itself; None: another thread receives."""
