"""When a waiting node requests what may have been lost: the estimate of a retransmission timer (RFC 6298).

What is missing is mostly only late. So the first request comes somewhat after the longest recent wait, and
each further one after twice the pause (`ExchangeHandle`). This keeps requests from loading a slow machine. As
in Karn and Partridge (1987) only an unambiguous answer adjusts the estimate: a peer that reports that it is
behind.
"""

from decentnode.core.timeouts import Timeouts

FORGETTING = 0.8
"""Factor on the usual wait after a shorter exchange."""
MARGIN = 1.5
"""Multiple of the usual wait before the first request: most waits are not much longer than usual."""


class UsualWait:
    """The wait of one node in an exchange without a loss, at most."""

    def __init__(self) -> None:
        self.seconds = Timeouts.first_request
        self.was_needless = False
        """Whether a requested peer has answered that it is only behind."""

    def learn(self, waited: float) -> None:
        """Adjusts it after an exchange that took `waited` seconds."""
        # A wait ended by a resend proves nothing about the usual time, so it may only lower the estimate.
        if self.was_needless:
            self.seconds = max(self.seconds, MARGIN * waited)
        else:
            self.seconds = max(
                Timeouts.first_request, FORGETTING * self.seconds, min(MARGIN * waited, self.seconds)
            )
        self.was_needless = False
