"""When a waiting node requests what may have been lost: a retransmission timer (RFC 6298).

What is missing is mostly only late. So the first request comes somewhat after the longest recent wait, and
each further one after twice the pause. This keeps requests from loading a slow machine. As in Karn and
Partridge (1987) only an unambiguous answer adjusts the timer: a peer that reports that it is behind.
"""

from decentnode.core.timeouts import Timeouts

FORGETTING = 0.8
"""Factor on the usual wait after a shorter exchange."""
MARGIN = 1.5
"""Multiple of the usual wait before the first request: most waits are not much longer than usual."""
NEVER = float("inf")


class RetransmissionTimer:
    """The timer of one node; it runs while the node waits.

    The node starts and stops it; after the first expiry the socket thread restarts it.
    """

    def __init__(self) -> None:
        self.due = NEVER
        """Time of the next request, on the clock of `time.monotonic`."""
        self.has_expired = False
        """Whether this wait has exceeded its first pause."""
        self.was_needless = False
        """Whether a requested peer has answered that it is only behind."""
        self._usual = Timeouts.first_request
        self._pause = Timeouts.first_request

    def start(self, timeout: float, now: float) -> float:
        """Starts a wait of at most `timeout` seconds; returns the first pause."""
        self._pause = min(self._usual, Timeouts.first_pause(timeout))
        self.due, self.has_expired = now + self._pause, False
        return self._pause

    def stop(self) -> None:
        """Ends the wait."""
        self.due, self.has_expired = NEVER, False

    def start_again(self, timeout: float, now: float) -> None:
        """Restarts the timer with a longer pause after a request."""
        self._pause = max(self._pause, min(2 * self._pause, Timeouts.longest_pause(timeout)))
        self.due, self.has_expired = now + self._pause, True

    def learn(self, waited: float) -> None:
        """Adjusts the usual wait after an exchange that took `waited` seconds."""
        # A wait ended by a resend proves nothing about the usual time, so it may only lower the estimate.
        if self.was_needless:
            self._usual = max(self._usual, MARGIN * waited)
        else:
            self._usual = max(
                Timeouts.first_request, FORGETTING * self._usual, min(MARGIN * waited, self._usual)
            )
        self.was_needless = False
