"""What has arrived for exchanges that have not begun: a peer may be ahead."""

from collections.abc import Callable

from decentnode.communication.exchange.handle import Key, Message

NEVER = 1 << 32
"""A round that does not come."""


class EarlyMessages:
    """By exchange and source; guarded by the lock of the node's mailbox. What is dropped is acknowledged."""

    def __init__(self, acknowledge: Callable[[int, Message], None]) -> None:
        self._acknowledge = acknowledge
        self._messages: dict[Key, dict[int, Message]] = {}
        self._late: set[tuple[int, Key]] = set()
        """Those that came when their source was lost, and may not have heard of it."""

    def add(self, source: int, key: Key, message: Message, is_lost: bool) -> None:
        """Keeps a message for later; `is_lost`: its source counts as lost."""
        self._messages.setdefault(key, {})[source] = message
        if is_lost:
            self._late.add((source, key))

    def has(self, source: int, key: Key) -> bool:
        """Whether that of a source is here."""
        return source in self._messages.get(key, ())

    def count(self, source: int) -> int:
        """How many of a source are here."""
        return sum(source in messages for messages in self._messages.values())

    def take(self, key: Key, late: bool) -> list[tuple[int, Message]]:
        """Gives out those for an exchange that begins, with their sources: the late ones, or all others.

        Who is lost still counts with what it had sent before, but not with what came after that: it does not
        get ours.
        """
        messages = self._messages.get(key, {})
        sources = [source for source in messages if ((source, key) in self._late) == late]
        self._late -= {(source, key) for source in sources}
        taken = [(source, messages.pop(source)) for source in sources]
        if not messages:
            self._messages.pop(key, None)
        return taken

    def drop_before(self, key: Key) -> int:
        """Drops those for exchanges that were left out; says how many."""
        dropped = 0
        for old in [k for k in self._messages if k < key]:
            for source in list(self._messages[old]):
                self._drop(source, old)
                dropped += 1
            del self._messages[old]
        return dropped

    def drop_from(self, source: int, until: int) -> None:
        """Drops those of a source for rounds before that one."""
        for key, messages in self._messages.items():
            if key[0] < until and source in messages:
                self._drop(source, key)

    def _drop(self, source: int, key: Key) -> None:
        self._late.discard((source, key))
        self._acknowledge(source, self._messages[key].pop(source))
