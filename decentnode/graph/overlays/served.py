"""Graphs whose edges a service answers, which the launcher starts and every node asks."""

from abc import abstractmethod
from typing import Protocol

from decentnode.graph.base import AperiodicGraph


class BlockSource(Protocol):
    """The source of the answers of the service."""

    def request(self, number: int) -> None:
        """Fetches that block, without waiting for it."""

    def block(self, number: int) -> bytes | None:
        """Returns the block of that number, or None if it is not here."""

    async def wait(self, number: int) -> None:
        """Waits until the block is here or the service counts as lost."""

    def repeats(self, first: int, instead: range) -> None:
        """Called when views of the rounds `instead` are repeated, from round `first` on."""


class ServedGraph(AperiodicGraph):
    """A graph that is answered in blocks of rounds."""

    needs_service = True

    port: int
    """The port of the service, where nodes of several machines ask it, or it was started by hand."""
    address: str
    """The service that was started by hand; empty: machine 0 starts one."""

    @abstractmethod
    def answer(self, number: int) -> bytes:
        """Returns a block, as the service sends it."""

    @abstractmethod
    def connect(self, source: BlockSource) -> None:
        """Connects to the service, whose answers are the blocks from now on."""
