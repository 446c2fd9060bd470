"""The edges of a node: both ends drop one, or agree on the round from which they exchange over it again.

One end proposes a round that neither has started (REJOIN_PROPOSE). The other accepts (REJOIN_ACCEPT), or
answers with the round that it starts next (POSITION), and the first proposes a later one. If one of these
messages is lost, one end expects payloads over an edge that the other has dropped. It requests what is
missing, receives DROP_EDGE, and the procedure starts again; in such a round neither end mixes the model of
the other. States of a peer, and peers that are too slow: `peer.py`.

W is symmetric in all rounds but one of each loss. An end i that times out on j has not received its payload,
and cannot know whether j has mixed its own. Where messages are lost one way, j has. So the sum of all models
changes once by w_ij (x_i - x_j). Correcting this would need a copy of every neighbor's model for a round
(docs/reliability_lost_edges.md).

Threads: the socket thread, which receives these messages. A node that skips rounds tells a node of its own
process in its own thread.
"""

from collections.abc import Callable, Mapping

from decentnode.communication.exchange.handle import Key
from decentnode.communication.exchange.mailbox import Mailbox
from decentnode.communication.peers.peer import EXCHANGING, PeerState
from decentnode.communication.peers.peers import Peers
from decentnode.communication.peers.rejoin import MOST_MARGIN, RejoinProtocol, SendControl, first_of
from decentnode.communication.wire import Header, Kind
from decentnode.errors import PeerLost, PeerTimeout

FIRST_MARGIN = 1
"""Rounds from the next round to the proposed one; doubled when the proposal arrives too late."""
FAR_AHEAD = 8
"""Rounds by which a peer must be ahead before this node skips to it instead of making it wait."""
MOST_REQUESTS = 16
"""Requests for a node's model per incarnation of a peer, which usually sends one to each neighbor."""
PROPOSAL_INTERVAL = 1.0
"""Seconds between two proposals to lost peers."""
MOST_PROPOSALS = 8
"""Proposals to one peer between two ticks."""
TOO_SLOW = 1
"""The `seq` of a DROP_EDGE to a peer that timed out."""
HAS_SENT, HAS_FAILED = 1, 2
"""Bits of the `seq` of a LEAVE: the sender has sent in an exchange, it ends by an error."""


class EdgeProtocol:
    """The edges of all nodes of a process."""

    def __init__(
        self, peers_by_rank: Mapping[int, Peers], send_control: SendControl,
        is_reachable: Callable[[int], bool], is_linked: Callable[[int], bool] | None = None,
    ) -> None:  # fmt: skip
        """`is_reachable`: whether the process of a rank may answer; `is_linked`: whether a link to it is
        open.
        """
        self.rejoining: RejoinProtocol | None = None
        self._peers_by_rank = peers_by_rank
        self._send_control = send_control
        self._is_reachable = is_reachable
        self._is_linked = is_linked or is_reachable

    @property
    def is_seeking(self) -> bool:
        """Whether this process was restarted and has not agreed on a round to rejoin in."""
        return self.rejoining is not None and self.rejoining.round is None

    def propose(self) -> bool:
        """Proposes to rejoin to every lost peer that is reachable; of two ends the lower rank does so.

        Returns whether there is any such peer, to which to propose again later.
        """
        # A node without a round of its own has nothing to propose.
        if self.is_seeking:
            return True
        has_any = False
        for peers in self._peers_by_rank.values():
            lost = [] if peers.mailbox.ended else peers.lost()
            for peer in lost:
                # Only over open links: one to each lost peer would be too many. A round that needs the peer
                # opens it.
                if peers.rank < peer and self._is_linked(peer):
                    has_any = True
                    peers[peer].proposals = 0
                    if self._may_rejoin(peers, peer):
                        self._propose(peers, peer, 0)
        return has_any

    def time_out(self, peers: Peers, key: Key, error: PeerTimeout, now: float) -> None:
        """Drops the edge to a peer past its deadline, and informs the peer."""
        peers[error.peer].note_timeout(key[0], error.seconds, now)
        peers.drop_edge(error.peer, error)
        self._send_control(Kind.DROP_EDGE, peers.rank, error.peer, key, TOO_SLOW)

    def _may_rejoin(self, peers: Peers, peer: int) -> bool:
        """Whether an agreement with the peer is allowed and can be sent."""
        is_held = peers[peer].is_held(peers.mailbox.progress, peers.clock.now())
        return self._is_reachable(peer) and not is_held

    def receive(self, peers: Peers, kind: int, header: Header) -> None:
        """Processes a control message about an edge."""
        peer, round = header.sender, header.round
        if self.rejoining is not None and self.is_seeking:
            # Agreements of single edges would bind nodes of this process to different rounds.
            self.rejoining.receive((peers.rank, peer), header)
            return
        match kind:
            case Kind.POSITION_REQUEST | Kind.REJOIN_PROPOSE if peers.mailbox.ended:
                self._send_control(Kind.LEAVE, peers.rank, peer, *farewell(peers.mailbox))
            case Kind.DROP_EDGE:
                # A repeated DROP_EDGE of the same timeout must not count twice, unless a rejoin was agreed
                # since.
                is_new = peers[peer].state in EXCHANGING | {PeerState.REJOINING}
                if header.seq == TOO_SLOW and is_new:
                    peers[peer].record_timeout(peers.mailbox.progress)
                peers.drop_edge(peer, PeerLost(peer, f"timed out on this node in round {round + 1}"))
            case Kind.LEAVE:
                last = header.key if header.seq & HAS_SENT else None
                peers.depart(peer, last, bool(header.seq & HAS_FAILED))
            case Kind.POSITION_REQUEST:
                self._send_position(peers, peer)
            case Kind.REJOIN_PROPOSE:
                self._consider(peers, peer, round, header.seq)
            case Kind.REJOIN_ACCEPT:
                self._conclude(peers, peer, round, header.seq)
            case Kind.POSITION:
                peers.note_progress(peer, header.key)
                self._receive_position(peers, peer, header.seq)
            case Kind.SKIP:
                # The peer sends nothing before that round, and will not mix what it is sent for one.
                peers.drop_edge(peer, PeerLost(peer, f"continues in round {round + 1}"), round)
                if self._is_reachable(peer):
                    peers.readmit(peer, round)
                self._follow(peers, round, round)
            case Kind.MODEL_REQUEST:
                # Bounds the copies of the model that one peer can cause.
                peers[peer].model_requests += 1
                if peers[peer].model_requests > MOST_REQUESTS:
                    peers.mailbox.refuse("fetch")
                else:
                    peers.want_model(peer)

    def answer_request(self, peers: Peers, peer: int, key: Key) -> None:
        """Answers a peer that requests this node's payload of an exchange."""
        mailbox = peers.mailbox
        # The peer waits for an edge that this end does not use: it must drop it, too.
        if peers.has_dropped(peer, key[0]):
            self._send_control(Kind.DROP_EDGE, mailbox.rank, peer, key, 0)
        elif mailbox.transport.resend(peer, key):
            return
        elif mailbox.ended:
            self._send_control(Kind.LEAVE, mailbox.rank, peer, *farewell(mailbox))
        else:
            # Not sent yet: the position shows that this node is behind and extends its deadline there.
            self._send_position(peers, peer)

    def _send_position(self, peers: Peers, peer: int) -> None:
        mailbox = peers.mailbox
        self._send_control(Kind.POSITION, peers.rank, peer, mailbox.position, mailbox.next_round)

    def _propose(self, peers: Peers, peer: int, theirs: int) -> None:
        entry = peers[peer]
        # POSITION answers trigger proposals, so without a limit two nodes could exchange them without a
        # pause.
        entry.proposals += 1
        if entry.proposals <= MOST_PROPOSALS:
            round = max(peers.mailbox.next_round, theirs) + (entry.margin or FIRST_MARGIN)
            self._send_control(
                Kind.REJOIN_PROPOSE, peers.rank, peer, first_of(round), peers.mailbox.next_round
            )

    def _consider(self, peers: Peers, peer: int, round: int, theirs: int) -> None:
        if peers.rejoin_round(peer) not in (None, round):
            return  # the proposals crossed; that of the rejoining peer was accepted
        if not self._may_rejoin(peers, peer):
            return  # it proposes again
        with peers.lock:  # both ends start with empty state from the `next_round` that the answer carries
            agrees, next_round = peers.readmit(peer, round, theirs), peers.mailbox.next_round
        if not agrees:
            self._send_position(peers, peer)
            return
        self._agree(peers, peer, round, theirs)
        self._send_control(Kind.REJOIN_ACCEPT, peers.rank, peer, first_of(round), next_round)

    def _conclude(self, peers: Peers, peer: int, round: int, theirs: int) -> None:
        peers[peer].margin = 0
        if peers.readmit(peer, round, theirs):
            self._agree(peers, peer, round, theirs)
        elif peers.error(peer) is not None:
            # This node has passed the round since it proposed it; without DROP_EDGE the peer waits for it
            # there.
            self._send_control(Kind.DROP_EDGE, peers.rank, peer, first_of(round), 0)

    def _receive_position(self, peers: Peers, peer: int, next_round: int) -> None:
        entry = peers[peer]
        if entry.state is PeerState.LOST and entry.proposals:
            # The proposal arrived after its round had started at the peer: leave more rounds next time.
            entry.margin = min(MOST_MARGIN, 2 * (entry.margin or FIRST_MARGIN))
            self._propose(peers, peer, next_round)

    def _agree(self, peers: Peers, peer: int, round: int, theirs: int) -> None:
        peers[peer].rejoin(round)
        self._follow(peers, round, theirs)

    def _follow(self, peers: Peers, round: int, theirs: int) -> None:
        """Makes this node skip to the round of a peer that is far ahead."""
        if theirs > peers.mailbox.next_round + FAR_AHEAD:
            peers.ahead = max(peers.ahead, round)


def farewell(mailbox: Mailbox) -> tuple[Key, int]:
    """Key and seq of a node's LEAVE: its last exchange, and whether it had one, and failed, as bits."""
    seq = HAS_SENT * (mailbox.last_exchange is not None) | HAS_FAILED * mailbox.failed
    return mailbox.last_exchange or first_of(0), seq
