"""Runs a `decentnode` command whose node processes say what their rounds have cost.

    python eval/benchmarks/_node_costs.py FOLDER WARM_UP run CONFIG ...

Each process leaves a line in the folder at its end: the control messages that it has sent, their bytes, and
its processor seconds from the start of round WARM_UP to the end of its last round. Payloads, notices of
payloads and acknowledgements, without which no exchange ends, are no control messages here, nor what is said
once at the start and the end.
"""

import os
import sys
import time
from pathlib import Path

from decentnode.cli.app import main
from decentnode.communication import wire
from decentnode.communication.wire import Kind
from decentnode.communication.zeromq.io_thread import IoThread
from decentnode.communication.zeromq.links import PeerLinks
from decentnode.node.participant import Participant

OF_EXCHANGES = {Kind.PAYLOAD, Kind.NOTICE, Kind.ACKNOWLEDGE, Kind.HELLO, Kind.LEAVE}


def watch(folder: Path, warm_up: int) -> None:
    """Has every process that is forked from here count."""
    messages, sizes, began, ended = list[int](), list[int](), list[float](), [0.0]
    send, run_round, stop = PeerLinks.send, Participant.run_round, IoThread.stop

    def counting_send(links: PeerLinks, sent: list[wire.Outgoing], opens: bool = True) -> list[wire.Outgoing]:
        for _, header, body in sent:
            if header[wire.KIND_AT] not in OF_EXCHANGES:
                messages.append(1)
                sizes.append(len(header) + len(body))
        return send(links, sent, opens)

    async def timed_round(node: Participant, round: int) -> None:
        if round == warm_up:
            messages.clear()
            sizes.clear()
            began.append(time.process_time())
        await run_round(node, round)
        ended[0] = time.process_time()

    def telling_stop(sockets: IoThread, linger: float) -> None:
        spent = ended[0] - began[0]
        (folder / str(os.getpid())).write_text(f"{len(messages)} {sum(sizes)} {spent}\n")
        stop(sockets, linger)

    PeerLinks.send = counting_send  # type: ignore[method-assign,assignment]
    Participant.run_round = timed_round  # type: ignore[method-assign]
    IoThread.stop = telling_stop  # type: ignore[method-assign]


if __name__ == "__main__":
    watch(Path(sys.argv.pop(1)), int(sys.argv.pop(1)))
    main()
