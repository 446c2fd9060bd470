"""Passes what arrives to the parts of the launcher that registered for its type."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
"""What is dispatched: reports of nodes, or messages of other launchers."""
K = TypeVar("K")


class Dispatcher(Generic[T]):
    """By type the functions that receive what arrives, in the order in which they registered.

    `launcher.py` has the parts register one after another, so it defines which of them acts first.
    """

    def __init__(self) -> None:
        self._receivers: defaultdict[type, list[Callable[[Any], object]]] = defaultdict(list)

    def register(self, kind: type[K], receive: Callable[[K], object]) -> None:
        """Has a function called with all that is of this very type."""
        self._receivers[kind].append(receive)

    def dispatch(self, arrival: T) -> None:
        """Calls all functions that registered for the type; one that nobody registered for is dropped."""
        for receive in self._receivers.get(type(arrival), ()):
            receive(arrival)
