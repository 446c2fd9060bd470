"""Messages of exchanges that have not opened yet: a peer may be ahead."""

from collections.abc import Callable

from decentnode.communication.exchange.handle import Key, Message

NEVER = 1 << 32
"""A round that no run reaches."""


class EarlyMessages:
    """Messages by exchange and source, guarded by the mailbox's lock. Dropped ones are acknowledged."""

    def __init__(self, acknowledge: Callable[[int, Message], None]) -> None:
        self._acknowledge = acknowledge
        self._messages: dict[Key, dict[int, tuple[Message, bool]]] = {}
        """Each with whether its source counted as lost when it arrived: it may not know yet that it does."""

    def add(self, source: int, key: Key, message: Message, is_lost: bool) -> None:
        """Keeps a message for a later exchange; `is_lost`: its source counts as lost."""
        self._messages.setdefault(key, {})[source] = message, is_lost

    def has(self, source: int, key: Key) -> bool:
        """Whether a source's message for this exchange is here."""
        return source in self._messages.get(key, ())

    def count(self, source: int) -> int:
        """How many messages of a source are here."""
        return sum(source in messages for messages in self._messages.values())

    def take(self, key: Key) -> dict[int, tuple[Message, bool]]:
        """Removes and returns the messages of an exchange that opens, each with whether it is late.

        What a lost source sent before its loss still counts. Late messages do not: that source does not
        receive this node's payload either.
        """
        return self._messages.pop(key, {})

    def drop_before(self, key: Key) -> int:
        """Drops messages of skipped exchanges; returns how many."""
        dropped = 0
        for old in [k for k in self._messages if k < key]:
            for source, (message, _) in self._messages.pop(old).items():
                self._acknowledge(source, message)
                dropped += 1
        return dropped

    def drop_from(self, source: int, until: int) -> None:
        """Drops messages of a source for rounds before `until`."""
        for key, messages in self._messages.items():
            if key[0] < until and source in messages:
                # The sender waits for this acknowledgement before it writes the memory again.
                self._acknowledge(source, messages.pop(source)[0])
