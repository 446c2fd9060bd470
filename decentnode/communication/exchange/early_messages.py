"""Messages of exchanges that have not opened yet: a peer may be ahead.

Threads: any, with the lock of the mailbox.
"""

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

    def __len__(self) -> int:
        return sum(map(len, tuple(self._messages.values())))

    def keep(self, source: int, key: Key, message: Message, is_lost: bool, most: int) -> str:
        """Keeps a message for a later exchange, at most so many of a source; returns why not, or nothing.

        `is_lost`: its source counts as lost.
        """
        if source in self._messages.get(key, ()):
            return "repeated"
        if sum(source in messages for messages in self._messages.values()) >= most:
            return "too many ahead"
        self._messages.setdefault(key, {})[source] = message, is_lost
        return ""

    def take(self, key: Key) -> tuple[dict[int, tuple[Message, bool]], int]:
        """Removes and returns the messages of an exchange that opens, each with whether it is late.

        What a lost source sent before its loss still counts. Late messages do not: that source does not
        receive this node's payload either. Also drops the messages of skipped exchanges; returns how many.
        """
        skipped = [
            early for k in sorted(self._messages) if k < key for early in self._messages.pop(k).items()
        ]
        for source, (message, _) in skipped:
            self._acknowledge(source, message)
        return self._messages.pop(key, {}), len(skipped)

    def drop_from(self, source: int, until: int) -> None:
        """Drops messages of a source for rounds before `until`."""
        for key, messages in self._messages.items():
            if key[0] < until and source in messages:
                # The sender waits for this acknowledgement before it writes the memory again.
                self._acknowledge(source, messages.pop(source)[0])
