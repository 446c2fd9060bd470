"""Messages of exchanges that have not opened yet: a peer may be ahead."""

from collections.abc import Callable

from decentnode.communication.exchange.handle import Key, Message

NEVER = 1 << 32
"""A round that no run reaches."""


class EarlyMessages:
    """Messages by exchange and source, guarded by the mailbox's lock. Dropped ones are acknowledged."""

    def __init__(self, acknowledge: Callable[[int, Message], None]) -> None:
        self._acknowledge = acknowledge
        self._messages: dict[Key, dict[int, Message]] = {}
        self._late: set[tuple[int, Key]] = set()
        """Messages that arrived while their source counted as lost: it may not know yet that it does."""

    def add(self, source: int, key: Key, message: Message, is_lost: bool) -> None:
        """Keeps a message for a later exchange; `is_lost`: its source counts as lost."""
        self._messages.setdefault(key, {})[source] = message
        if is_lost:
            self._late.add((source, key))

    def has(self, source: int, key: Key) -> bool:
        """Whether a source's message for this exchange is here."""
        return source in self._messages.get(key, ())

    def count(self, source: int) -> int:
        """How many messages of a source are here."""
        return sum(source in messages for messages in self._messages.values())

    def take(self, key: Key, late: bool) -> list[tuple[int, Message]]:
        """Removes and returns (source, message) of an exchange that opens: the late ones, or all others.

        What a lost source sent before its loss still counts. Late messages do not: that source does not
        receive this node's payload either.
        """
        messages = self._messages.get(key, {})
        sources = [source for source in messages if ((source, key) in self._late) == late]
        self._late -= {(source, key) for source in sources}
        taken = [(source, messages.pop(source)) for source in sources]
        if not messages:
            self._messages.pop(key, None)
        return taken

    def drop_before(self, key: Key) -> int:
        """Drops messages of skipped exchanges; returns how many."""
        dropped = 0
        for old in [k for k in self._messages if k < key]:
            for source in list(self._messages[old]):
                self._drop(source, old)
                dropped += 1
            del self._messages[old]
        return dropped

    def drop_from(self, source: int, until: int) -> None:
        """Drops messages of a source for rounds before `until`."""
        for key, messages in self._messages.items():
            if key[0] < until and source in messages:
                self._drop(source, key)

    def _drop(self, source: int, key: Key) -> None:
        self._late.discard((source, key))
        # The sender waits for this acknowledgement before it writes the memory again.
        self._acknowledge(source, self._messages[key].pop(source))
