"""When a request without an answer is repeated: the retransmission timer of RFC 6298."""

from dataclasses import dataclass
from math import inf

from decentnode.core.timeouts import Timeouts


@dataclass
class AnswerTime:
    """The usual time of an answer, and the timeout that follows from it (RFC 6298, section 2).

    First r: SRTT = r, RTTVAR = r / 2.  Then RTTVAR <- 3/4 RTTVAR + 1/4 |SRTT - r|,  SRTT <- 7/8 SRTT + 1/8 r
    RTO = SRTT + 4 RTTVAR, within the limits of `Timeouts`
    """

    srtt: float | None = None
    rttvar: float = 0.0
    rto: float = Timeouts.unanswered

    def learn(self, r: float) -> None:
        """Adjusts it to an answer that took r seconds."""
        if self.srtt is None:
            self.srtt, self.rttvar = r, r / 2
        else:
            self.rttvar += (abs(self.srtt - r) - self.rttvar) / 4
            self.srtt += (r - self.srtt) / 8
        rto = self.srtt + 4 * self.rttvar
        self.rto = min(max(rto, Timeouts.unanswered), Timeouts.longest_unanswered)


class AnswerTimer:
    """The timer of one request at a time, to changing peers.

    Each repeat doubles the timeout (section 5.5). Only a request that was sent once is measured, because an
    answer does not say which one it is for; until then the doubled timeout stays (Karn and Partridge, 1987).
    So a slow link is not loaded with the same request again and again.
    """

    def __init__(self) -> None:
        self.due = inf
        """When to repeat the request; infinity: none is open."""
        self._peer, self._number = -1, -1
        self._sent: float | None = None
        """When the request was sent; None: it was sent more than once."""
        self._usual_time = AnswerTime()
        self._times_by_peer: dict[int, AnswerTime] = {}

    def is_for(self, peer: int, number: int) -> bool:
        """Whether it runs for this request."""
        return self.due < inf and (self._peer, self._number) == (peer, number)

    def start(self, peer: int, number: int, now: float, sent_before: bool = False) -> None:
        """Starts for a request that was sent now; `sent_before`: and once before."""
        self._peer, self._number, self._sent = peer, number, None if sent_before else now
        # From a peer that has not answered yet, the answer is expected as from the others.
        answer_time = self._times_by_peer.setdefault(peer, AnswerTime(rto=self._usual_time.rto))
        self.due = now + answer_time.rto

    def repeat(self, now: float) -> None:
        """Starts again for a request that is repeated now."""
        answer_time = self._times_by_peer[self._peer]
        answer_time.rto = min(2 * answer_time.rto, Timeouts.longest_unanswered)
        self._sent, self.due = None, now + answer_time.rto

    def stop(self, now: float) -> None:
        """Ends because the answer is here, and learns from it."""
        if self.due < inf and self._sent is not None:
            for answer_time in (self._times_by_peer[self._peer], self._usual_time):
                answer_time.learn(now - self._sent)
        self.due = inf

    def cancel(self) -> None:
        """Ends because no answer is awaited any more."""
        self.due = inf
