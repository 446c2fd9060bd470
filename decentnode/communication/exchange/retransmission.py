"""When a node that waits asks for what may have been lost: a retransmission timer (RFC 6298).

What is missing is mostly only late. So the first request comes somewhat after the longest wait that was usual
lately, each further one after twice the pause, and a slow machine is not kept busy with requests. As in Karn
and Partridge (1987) only an unambiguous answer teaches something: a peer that says that it is behind.
"""

FIRST_ASK = 0.1
"""Seconds of waiting after which a node asks for what is missing, where it does not usually wait longer."""
FORGETTING = 0.8
"""What is left of the usual wait after an exchange that was shorter."""
MARGIN = 1.5
"""Times the usual wait until the first request: most waits are not much longer than usual."""
FIRST_SHARE, SHARE = 1 / 4, 1 / 8
"""Of the deadline, the longest first pause, and the longest of all others: requests are signs of life."""
NEVER = float("inf")


class RetransmissionTimer:
    """One node's; it runs while the node waits.

    The node starts and stops it; from its first expiry on the thread that serves the sockets starts it again.
    """

    def __init__(self) -> None:
        self.due = NEVER
        """When the node asks, as `time.monotonic` counts."""
        self.has_expired = False
        """Whether the node has asked in this wait."""
        self.was_needless = False
        """Whether somebody who was asked has said that it is only behind."""
        self._usual = FIRST_ASK
        self._pause = FIRST_ASK

    def start(self, timeout: float, now: float) -> float:
        """The node begins to wait, at most `timeout` seconds; returns the first pause."""
        self._pause = min(self._usual, FIRST_SHARE * timeout)
        self.due, self.has_expired = now + self._pause, False
        return self._pause

    def stop(self) -> None:
        """The node waits no more."""
        self.due, self.has_expired = NEVER, False

    def start_again(self, timeout: float, now: float) -> None:
        """The node has asked, and asks again after a longer pause."""
        self._pause = max(self._pause, min(2 * self._pause, SHARE * timeout))
        self.due, self.has_expired = now + self._pause, True

    def learn(self, waited: float) -> None:
        """An exchange is done after so many seconds of waiting."""
        if self.was_needless:
            self._usual = max(self._usual, MARGIN * waited)
        else:
            self._usual = max(FIRST_ASK, FORGETTING * self._usual, min(MARGIN * waited, self._usual))
        self.was_needless = False
