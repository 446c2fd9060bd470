"""Shows that no message harms a node: a peer with a valid key sends a million broken ones, a stranger noise.

Three nodes on three machines of one host. Rank 1 is honest and exchanges models with rank 0 all the time;
each of these exchanges is checked. Rank 2 sends rank 0 messages of every kind that break the rules somewhere,
as fast as they are taken, under its own key (or, with --plain, without any). A stranger opens connections and
writes bytes, before and after ZeroMQ's greeting.

    python eval/reliability/fuzz.py --frames 1000000        # takes minutes
    python eval/reliability/fuzz.py --frames 1000000 --plain
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import zmq
from _mutations import Forge, raw_bytes

from decentnode.communication import wire
from decentnode.communication.base import BufferSpec, HostProcess, Inbox, ProcessDirectory
from decentnode.communication.interceptor import Received
from decentnode.communication.security.curve import Credentials, KeyPair
from decentnode.communication.zeromq.endpoint import ProcessEndpoint
from decentnode.communication.zeromq.plugin import ZeroMQ
from decentnode.core.payload import Payload, dense_layout

FORK = multiprocessing.get_context("fork")
ELEMENTS = 1000
LAYOUT = dense_layout(ELEMENTS)
MOST_BYTES = 1 << 20
ROUND_LIMIT = 20.0
"""Seconds after which an honest exchange counts as hanging."""


class Party:
    """One of the three nodes, in a process of its own."""

    def __init__(self, place: ProcessDirectory, base_port: int, run_id: int, orders: Connection) -> None:
        self.orders = orders
        self.run_id = run_id
        self.rank = place.own
        self.transport = ZeroMQ("tcp", base_port)
        self.transport.prepare(place, MOST_BYTES)
        self.endpoint: Any = self.transport.endpoint(self.rank, BufferSpec(ELEMENTS))
        assert isinstance(self.endpoint, ProcessEndpoint)
        self.arrived = 0
        self.used: Counter[str] = Counter()
        self._count_arrivals()

    def _count_arrivals(self) -> None:
        reception = self.transport.io_thread.receiver
        accept, take = reception._accept, reception.take

        def counting(messages: list[Received]) -> None:
            self.arrived += len(messages)
            take(messages)

        def using(head: bytes, body: wire.Body, guard: zmq.Frame | None) -> None:
            accept(head, body, guard)
            self.used[wire.Kind(wire.Header.unpack(head).kind).name] += 1

        reception.take, reception._accept = counting, using

    async def exchange_until_stopped(self) -> dict[str, Any]:
        """Honest rounds between ranks 0 and 1; rank 0 says which one is the last."""
        round, last, slowest, wrong = 0, 2**31, 0.0, 0
        other = 1 - self.rank
        while round <= last:
            if self.rank == 0 and last == 2**31:
                last = self._run_command(round, last)
            began = time.monotonic()
            slot = self.endpoint.slots[round % 2].fill_(float(self.rank + round % 1000))
            if self.rank == 0:
                slot[1] = float(last - round if last < 2**31 else 1e9)
            key = (round, 0, 0)
            outgoing = {other: Payload.dense(slot)}
            handle = await self.endpoint.exchange(outgoing, [other], key, ROUND_LIMIT, LAYOUT)
            inbox = Inbox(handle, LAYOUT, self.endpoint)
            if other not in inbox:
                raise RuntimeError(f"rank {self.rank}, round {round}: {inbox.missing}")
            vector = inbox[other]["vector"]
            wrong += int((vector[2:] != float(other + round % 1000)).any())
            if self.rank == 1 and float(vector[1]) < 1e8:
                last = round + int(vector[1])
            inbox.release()
            slowest = max(slowest, time.monotonic() - began)
            round += 1
        return {"rounds": round, "slowest": slowest, "wrong": wrong}

    def _run_command(self, round: int, last: int) -> int:
        while self.orders.poll():
            if self.orders.recv() == "end":
                last = round + 2
            else:
                self.orders.send(self._account(round))
        return last

    def _account(self, round: int) -> dict[str, Any]:
        refused = dict(self.endpoint.refused)
        return {
            "round": round, "arrived": self.arrived, "used": dict(self.used), "refused": refused,
            "rss": resident_bytes(),
        }  # fmt: skip


def resident_bytes() -> int:
    """What this process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def host(place: ProcessDirectory, base_port: int, run_id: int, orders: Connection, bound: Any) -> None:
    """A forked process with one honest node."""
    torch.set_num_threads(1)
    party = Party(place, base_port, run_id, orders)
    bound.wait(10.0)
    party.transport.open([1 - place.own], run_id, 10.0)
    result = asyncio.run(party.exchange_until_stopped())
    result |= party._account(result["rounds"])
    result["mailbox"] = {"parked": len(party.endpoint.mailbox._early._messages)}
    party.endpoint.leave()
    party.transport.close(2.0)
    orders.send(result)


class Scene:
    """Ranks 0 and 1 at work, and how to attack rank 0."""

    def __init__(self, directory: str, base_port: int, guarded: bool) -> None:
        self.run_id = random.getrandbits(62) + 1
        processes = tuple(HostProcess(i, 0, (i,), f"127.0.0.{i + 1}") for i in range(3))
        pairs = [KeyPair.make() for _ in processes]
        public = tuple(pair.public for pair in pairs)
        keys = [Credentials(i, pair, public) if guarded else None for i, pair in enumerate(pairs)]
        self.keys = keys[2]
        self.address = ("127.0.0.1", base_port)
        bound = FORK.Barrier(2)
        self.pipes, self.processes = [], []
        for number in (0, 1):
            here, there = FORK.Pipe()
            place = ProcessDirectory(processes, number, directory, grace=1.0, credentials=keys[number])
            process = FORK.Process(target=host, args=(place, base_port, self.run_id, there, bound))
            process.start()
            self.pipes.append(here)
            self.processes.append(process)

    def account(self) -> dict[str, Any]:
        """What rank 0 has counted so far; RuntimeError when it has ended or does not answer."""
        self.pipes[0].send("account")
        if not self.pipes[0].poll(2 * ROUND_LIMIT):
            raise RuntimeError("rank 0 hangs")
        answer: dict[str, Any] = self.pipes[0].recv()
        return answer

    def end(self) -> list[dict[str, Any]]:
        """What both honest nodes report in the end."""
        self.pipes[0].send("end")
        faults = []
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            if not pipe.poll(2 * ROUND_LIMIT):
                raise RuntimeError(f"process {process.pid} did not end")
            faults.append(pipe.recv())
            process.join(ROUND_LIMIT)
            if process.exitcode:
                raise RuntimeError(f"process {process.pid} ended with {process.exitcode}")
        return faults

    def kill(self) -> None:
        """Leaves nothing behind."""
        for process in self.processes:
            process.kill()
            process.join()


def send_frames(scene: Scene, count: int, seed: int) -> None:
    """Rank 2's messages, as fast as they are taken."""
    payload = Payload.dense(torch.full((ELEMENTS,), float("nan"))).buffer.numpy().tobytes()
    forge = Forge(seed, scene.run_id, (2, 0), payload, LAYOUT.hash)
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.set(zmq.SNDHWM, 1000)
    if scene.keys is not None:
        scene.keys.guard_client(dealer, 0)
    dealer.connect("tcp://{}:{}".format(*scene.address))
    for number in range(count):
        frames = forge.message()
        if scene.keys is None and len(frames[0]) == wire.HEADER_BYTES:
            frames[0] = not_in_the_name_of_others(frames[0])
        dealer.send_multipart(frames)
        if number % 5000 == 0:
            forge.round = scene.account()["round"]
    dealer.close(5000)
    context.term()


def not_in_the_name_of_others(head: bytes) -> bytes:
    """Without keys rank 2 could simply end the link between 0 and 1, and would be believed."""
    try:
        header = wire.Header.unpack(head)
    except wire.WireError:
        return head
    return head if header.sender != 1 else bytes(wire.HEADER_BYTES)


def send_noise(scene: Scene, connections: int, seed: int) -> None:
    """A stranger's connections; what the other end answers is not read."""
    source = random.Random(seed)
    for _ in range(connections):
        with socket.create_connection(scene.address, 5.0) as stranger:
            try:
                for piece in raw_bytes(source):
                    stranger.sendall(piece)
            except OSError:
                continue


def attack(scene: Scene, frames: int, noise: int, seed: int) -> dict[str, Any]:
    """All attacks one after the other, and what is to be said of them."""
    time.sleep(0.5)
    send_frames(scene, frames // 10, seed + 1)
    send_noise(scene, noise // 10, seed + 1)
    before = scene.account()
    began = time.monotonic()
    send_frames(scene, frames, seed)
    seconds = time.monotonic() - began
    send_noise(scene, noise, seed)
    time.sleep(1.0)
    after = scene.account()
    figures: dict[str, Any] = {
        "frames": frames, "connections": noise, "frames_per_second": round(frames / seconds),
        "rss_growth_mb": round((after["rss"] - before["rss"]) / 1e6, 2),
    }  # fmt: skip
    first, second = scene.end()
    lawful = first["arrived"] - sum(first["used"].values())
    figures["arrived"] = first["arrived"]
    figures["refused"] = first["refused"]
    figures["used"] = first["used"]
    figures["not_counted"] = max(0, lawful - sum(first["refused"].values()))
    figures["honest_rounds"] = first["rounds"]
    figures["wrong_exchanges"] = first["wrong"] + second["wrong"]
    figures["slowest_round_seconds"] = round(max(first["slowest"], second["slowest"]), 3)
    figures["parked"] = first["mailbox"]["parked"]
    return figures


def main() -> int:
    """Prints a line for each figure and all of them as JSON; 1 when a node crashed, hung or was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", type=int, default=1_000_000, help="messages of the peer")
    parser.add_argument("--noise", type=int, default=2000, help="connections of the stranger")
    parser.add_argument("--plain", action="store_true", help="links without keys")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--port", type=int, default=30200, help="the first of three")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dn-") as directory:
        scene = Scene(directory, options.port, not options.plain)
        try:
            figures = attack(scene, options.frames, options.noise, options.seed)
        except (RuntimeError, EOFError, OSError) as error:
            print(f"FAILED: {error!r}; exit codes {[process.exitcode for process in scene.processes]}")
            return 1
        finally:
            scene.kill()
    for name, value in figures.items():
        print(f"{name:>24}  {value}")
    print(json.dumps(figures))
    return 1 if figures["wrong_exchanges"] or figures["not_counted"] else 0


if __name__ == "__main__":
    sys.exit(main())
