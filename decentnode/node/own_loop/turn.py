"""Whose turn it is: that of a loop, which makes steps, or that of its participant, which makes rounds."""

import asyncio
from math import inf

from decentnode.training.local_steps import RoundAbandoned


class Turn:
    """Passes the turn between a loop and its participant, which are two coroutines of one event loop.

    One of both waits while the other runs, so neither needs a lock.
    """

    def __init__(self) -> None:
        self.made = 0
        """Steps of the loop that the participant has not taken yet."""
        self.wanted: float = 0
        """After so many steps it is the participant's turn."""
        self.is_over = False
        """Whether the participant has ended."""
        self._is_asked = False
        self._has_left = False
        self._loop: asyncio.Future[None] | None = None
        self._participant: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        state = "over" if self.is_over else f"{self.made} of {self.wanted:g} steps"
        return f"<Turn: {state}>"

    @property
    def is_loops(self) -> bool:
        """Whether the loop may make another step before the participant's turn."""
        return self.made < self.wanted and not self._is_asked and not self.is_over

    # For the participant.

    async def steps(self, count: float = inf) -> int:
        """Waits until the loop has made so many steps, or asks for a round; returns how many it has made.

        Raises RoundAbandoned when it makes no more.
        """
        self.wanted = count
        while self.made < count and not self._is_asked:
            if self._has_left:
                raise RoundAbandoned
            self._participant = asyncio.get_running_loop().create_future()
            _wake(self._loop)
            await self._participant
        made, self.made, self.wanted, self._is_asked = self.made, 0, 0, False
        return made

    async def begun(self) -> None:
        """Waits until the loop has passed the turn on for the first time, or has ended."""
        while self._loop is None and not self._has_left:
            self._participant = asyncio.get_running_loop().create_future()
            await self._participant

    def end(self) -> None:
        """Ends the participant's part: the loop has its turn for good."""
        self.is_over = True
        _wake(self._loop)

    async def left(self) -> None:
        """Waits until the loop has said that it makes no further steps."""
        while not self._has_left:
            self._participant = asyncio.get_running_loop().create_future()
            await self._participant

    # For the loop.

    async def pass_on(self, asks: bool = False) -> None:
        """Gives the turn to the participant, and waits for the next one; `asks` for a round at once."""
        self._is_asked = self._is_asked or asks
        if self.is_over:
            return
        self._loop = asyncio.get_running_loop().create_future()
        _wake(self._participant)
        await self._loop

    def leave(self) -> None:
        """Makes no further steps."""
        self._has_left = True
        _wake(self._participant)


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
