"""Shatter that notes, for an evaluation, whose each encrypted chunk is and what a receiver sees of it."""

import hashlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from decentnode.core.rng import RandomSource
from decentnode.graph.base import View
from decentnode.sharing.base import Incoming
from decentnode.sharing.shatter import Shatter

FOLDER = "DECENTNODE_NOTES"


def _name(packet: bytes) -> str:
    return hashlib.sha256(packet).hexdigest()[:24]


@dataclass(kw_only=True)
class Watched(Shatter):
    """Writes lines to a file of its rank in the folder that the environment names."""

    def _sealed(self, chunk: int, values: Tensor, receiver: int, view: View, source: RandomSource) -> bytes:
        packet = super()._sealed(chunk, values, receiver, view, source)
        _note(view, {"sent": _name(packet), "owner": view.rank, "chunk": chunk})
        return packet

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        now = time.monotonic()
        for relay, payload in incoming.items():
            names = [_name(packet) for packet in self._split(bytes(payload["packets"].cpu().numpy()))]
            sizes = [self._packet] * len(names)
            _note(view, {"round": view.round, "relay": relay, "at": now, "names": names, "sizes": sizes})
        super().mix(vector, incoming, view, out)


@dataclass(kw_only=True)
class InOrder(Watched):
    """The control: its relays keep the order in which chunks came."""

    def _shuffled(self, packets: list[bytes], source: RandomSource) -> list[bytes]:
        return packets


def _note(view: View, line: dict[str, object]) -> None:
    with (Path(os.environ[FOLDER]) / f"{view.rank}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
