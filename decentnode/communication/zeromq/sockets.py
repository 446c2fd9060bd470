"""What any thread may ask of the sockets of its host process.

Threads: every method here may run in any thread. A node's thread sends by `dispatch`, which writes into links
that exist, behind a lock: waking the socket thread costs more than such a send (libzmq allows a socket to
change threads behind a full fence). All else is a command that `post` puts into a queue, and that the socket
thread runs (`io_thread.py`).
"""

import time
from collections.abc import Callable, Iterable
from functools import cached_property

import msgspec
import zmq

from decentnode.communication import wire
from decentnode.communication.base import ProcessDirectory
from decentnode.communication.exchange.handle import Key
from decentnode.communication.peers.peers import Peers, PeersByRank
from decentnode.communication.shared_memory.attached import AttachedSegments
from decentnode.communication.shared_memory.doorbell import pipe_path
from decentnode.communication.wire import Kind
from decentnode.communication.zeromq.links import NEVER, LinkOwner, PeerLinks
from decentnode.communication.zeromq.stripes import Connections, Striping
from decentnode.communication.zmq_poll import Commands

RANKS_PER_HELLO = 32
"""A hello must fit into a record of a doorbell."""
Hello = tuple[wire.Header, bytes]


class Sockets:
    """The links of a host process, and the queue of the thread that serves them."""

    def __init__(
        self, directory: ProcessDirectory, context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint_of: Callable[[int], str], link_owner: LinkOwner,
        receive_from_sibling: Callable[[Peers, wire.Header], None], connections: Connections, most_bytes: int,
    ) -> None:  # fmt: skip
        """`endpoint_of`: the address of a peer process; `receive_from_sibling`: processes a control message
        between two nodes of this process; `connections`: of each link over TCP; `most_bytes`: the largest
        payload.
        """
        self.directory = directory
        self.peers_by_rank = PeersByRank()
        """By local rank its peers, with its mailbox."""
        self.run_id = 0
        self.hello = wire.Hello([], [])
        self.incarnations: dict[int, int] = {}
        """By process its incarnation as far as this one knows, where that is not 0."""
        self.senders: dict[int, frozenset[int]] = {}
        """By local rank the ranks that may ever send to it, where known: no other payload is ever read."""
        self.segments = AttachedSegments()
        self.has_pipes = False
        """Whether processes of this machine exchange messages through pipes."""
        self.links = PeerLinks(
            context, directory, endpoint_of, self._hello_messages, link_owner, pipe_of=self._pipe_of,
            striping=None if connections == 1 else Striping(connections, most_bytes, self.post),
        )  # fmt: skip
        self.commands = Commands()
        self.next_proposal = NEVER
        """When lost peers are sent proposals to exchange again, on the clock of `time.monotonic`."""
        self._receive_from_sibling = receive_from_sibling
        self._foreseen: dict[int, frozenset[int]] = {}
        """By local rank the peers of its coming rounds, on a graph that changes."""

    def post(self, command: Callable[[], object]) -> None:
        """Makes the socket thread run a command soon, in the order of the posts."""
        self.commands.post(command)

    def propose_within(self, seconds: float) -> None:
        """Lets the socket thread send proposals to lost peers when it wakes up after that time."""
        self.next_proposal = min(self.next_proposal, time.monotonic() + seconds)

    def dispatch(self, messages: list[wire.Outgoing]) -> None:
        """Sends at once, without waking the socket thread unless it has to open a link first."""
        if left := self.links.send(messages, opens=False):
            self.post(lambda: self.links.send(left))

    def header(
        self, kind: Kind, sender: int, receiver: int, key: Key = (0, 0, 0), seq: int = 0, length: int = 0,
        layout: int = 0, body: wire.Body = b"",
    ) -> wire.Header:  # fmt: skip
        """The header of a message from a local node; `body` is what its digest covers."""
        place, knows = self.directory, self.incarnations.get(self.directory.home[receiver], 0)
        return wire.Header(
            kind, self.run_id, sender, receiver, *key, layout, seq, 0, length,
            place.incarnation, knows, wire.digest(body),
        )  # fmt: skip

    def send_control(self, kind: Kind, sender: int, peer: int, key: Key, seq: int = 0) -> None:
        """Sends a control message of a local node, or passes it to another one of this process."""
        sibling = self.peers_by_rank.get(peer)
        header = self.header(kind, sender, peer, key, seq=seq)
        if sibling is None:
            self.dispatch([(self.directory.home[peer], header.pack(), b"")])
        else:
            self._receive_from_sibling(sibling, header)

    def need(self, rank: int, peers: Iterable[int]) -> None:
        """Opens links to the peers of the coming rounds of a local rank, and keeps them open."""
        self._foreseen[rank] = frozenset(peers)
        processes = {self.directory.home[peer] for peer in peers} - {self.directory.own}
        self.links.budget.need(rank, processes)
        # The attachments and pipes used last are kept.
        self.segments.most = self.links.budget.most
        needing = processes
        if self.has_pipes and not self.directory.incarnation:
            # A pipe is opened in no time by the first message for it; but a lost peer is sent none.
            lost = {self.directory.home[p.rank] for p in self.peers_by_rank[rank].unsettled() if p.error}
            needing = (processes - self.directory.neighbors) | lost
        lacking = [p for p in needing & processes if not self.links.holds(p)]
        if lacking or self.links.has_surplus:
            self.post(lambda: self._open(lacking))

    def _open(self, processes: Iterable[int]) -> None:
        for process in processes:
            self.links.need(process)
        self.links.close_surplus()

    def is_linked(self, rank: int) -> bool:
        """True for a local rank, or when there is a link to the process of another."""
        process = self.directory.home[rank]
        return process == self.directory.own or self.links.holds(process)

    def linked(self, only_needed: bool = False) -> list[int]:
        """The ranks of all processes with a link, or of those that the coming rounds need, where known."""
        needs = self.links.budget.needs
        linked = [p for p in self.links.processes if not only_needed or needs(p)]
        return [rank for process in linked for rank in self.directory.processes[process].ranks]

    def concerned(self, rank: int, only_needed: bool = False) -> set[int]:
        """The ranks that may wait for a local one, in its process and behind links.

        They are its peers of all rounds, or, on a graph that changes, those of the coming rounds and, without
        `only_needed`, all that it has met. Not all nodes behind its links: processes with many nodes would
        exchange a message for each pair of nodes.
        """
        peers = self._foreseen.get(rank) if only_needed else None
        peers = self.peers_of(rank) if peers is None else peers
        others = {*self.linked(only_needed), *self.peers_by_rank} - {rank}
        return others if peers is None else others & peers

    def peers_of(self, rank: int) -> frozenset[int] | None:
        """Returns the peers of a local rank in any round, as far as they are known; None: all may be."""
        peers = self.senders.get(rank)
        if peers is None and (foreseen := self._foreseen.get(rank)) is not None:
            return foreseen.union(list(self.peers_by_rank[rank]))
        return peers

    def any_lives(self, ranks: Iterable[int]) -> bool:
        """Whether the process of one of these ranks is not lost."""
        return any(self.directory.home[rank] not in self.links.lost for rank in ranks)

    # Any thread opens a pipe by its first message, so what a link starts with is made here.

    def _pipe_of(self, process: int, is_doorbell: bool) -> str | None:
        """The doorbell or the pipe of a process that reads this one's memory; None: it has none."""
        has_one = self.has_pipes and process in self.directory.neighbors
        return pipe_path(self.directory, process, is_doorbell) if has_one else None

    def _hello_messages(self, process: int, is_doorbell: bool) -> list[wire.Outgoing]:
        """The HELLOs for a process."""
        receiver = self.directory.processes[process].ranks[0]
        hellos = self._hellos[self.directory.co_located(process)]
        return [(process, head._replace(seq=is_doorbell).pack(receiver), body) for head, body in hellos]

    @cached_property
    def _hellos(self) -> tuple[list[Hello], list[Hello]]:
        """For processes elsewhere with local ranks, and for those of this machine also with their memory."""
        # Made once: in a random graph a node opens links in each round.
        hellos: tuple[list[Hello], list[Hello]] = ([], [])
        for at in range(0, len(self.hello.ranks), RANKS_PER_HELLO):
            some = slice(at, at + RANKS_PER_HELLO)
            ranks = self.hello.ranks[some]
            for target, segments in zip(hellos, ([], self.hello.segments[some]), strict=True):
                body = msgspec.msgpack.encode(wire.Hello(ranks, segments))
                head = self.header(Kind.HELLO, ranks[0], ranks[0], length=len(body), body=body)
                target.append((head, body))
        return hellos
