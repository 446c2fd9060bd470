"""Shows that strangers and impostors get nothing into a run: ten thousand connections against live training.

Two machines on loopback with keys train together. Rank 0 is connected to, in bursts, by clients without a
key, with an unknown key, with a wrong idea of the server's key, with machine 1's key but the rank of another
machine or another run id, and by raw bytes. All that can send, send a payload that would be valid. Rank 0's
loss in every round and all models in the end must be, bit for bit, those of the same run on one machine that
nobody attacked.

    python eval/reliability/strangers.py --connections 10000 --rounds 20000        # takes minutes
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
import zmq

from decentnode.cli import app as cli
from decentnode.communication import wire
from decentnode.communication.security.curve import Credentials, KeyPair
from decentnode.communication.security.key_files import load_credentials, make_keys
from decentnode.core.payload import Payload, dense_layout
from decentnode.formats.records import read_records
from decentnode.launcher.cluster.rendezvous import Rendezvous

TINY = Path(__file__).with_name("tiny.yaml")
ADDRESSES = ("127.0.0.1", "127.0.0.2")
RENDEZVOUS, BASE = 30170, 30180
DIMENSION = 16
BURST = 100
"""Connections at once, unless the command line says otherwise."""
SETTLE = 0.3
"""Seconds that the connections of a burst are held."""
PAUSE = 0.3
"""Seconds between two bursts, which show what a round takes without."""
START_SECONDS, RUN_SECONDS = 60.0, 900.0
KINDS = ("no key", "unknown key", "wrong server key", "other rank", "other run", "raw bytes")


def overrides(rounds: int, addresses: tuple[str, ...]) -> list[str]:
    """Four nodes in a ring."""
    nodes = 4 // len(addresses)
    machines = ", ".join(f"{{address: {address}, nodes: {nodes}}}" for address in addresses)
    return [
        f"rounds={rounds}", "graph={name: ring, nodes: 4}", "dataset.nodes=4",
        f"mapping={{machines: [{machines}], rendezvous_port: {RENDEZVOUS}}}",
        f"communication={{name: zeromq, base_port: {BASE}}}",
    ]  # fmt: skip


def launch(folder: Path, words: list[str]) -> int:
    """Starts `decentnode run` in a process of its own, which notes the run's id."""
    folder.mkdir()
    pid = os.fork()
    if pid == 0:
        _launch(folder, words)
    return pid


def _launch(folder: Path, words: list[str]) -> NoReturn:
    os.setsid()
    out = os.open(folder / "out", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    meet = Rendezvous.meet

    def noting(self: Rendezvous, *arguments: Any) -> object:
        start = meet(self, *arguments)
        (folder / "id.new").write_text(str(getattr(start, "run_id", start)))
        (folder / "id.new").rename(folder / "id")
        return start

    Rendezvous.meet = noting  # type: ignore[method-assign, assignment]
    try:
        cli.main(["run", str(TINY), f"run_dir={folder / 'run'}", *words])
    except SystemExit as ended:
        os._exit(int(ended.code or 0))
    os._exit(1)


def wait_for(pids: list[int], seconds: float) -> list[int]:
    """The exit codes; whoever takes too long is killed."""
    limit = time.monotonic() + seconds
    codes = {}
    while len(codes) < len(pids):
        for pid in set(pids) - codes.keys():
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                codes[pid] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > limit:
                os.killpg(pid, signal.SIGKILL)
        time.sleep(0.05)
    return [codes[pid] for pid in pids]


def wait_until_there(path: Path) -> None:
    """Until a file is there; raises RuntimeError when it takes too long."""
    limit = time.monotonic() + START_SECONDS
    while not path.exists():
        if time.monotonic() > limit:
            raise RuntimeError(f"{path} did not arrive within {START_SECONDS:.0f} s")
        time.sleep(0.02)


Connection = zmq.Socket[bytes] | socket.socket


class Mark(NamedTuple):
    """Where the victim is, and what all attacked nodes have computed so far."""

    round: int
    processor_seconds: float


def processor_seconds(session: int) -> float:
    """What the living processes that a launcher started, and it itself, have taken of the processors."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            ticks += (int(fields[3]) == session) * (int(fields[11]) + int(fields[12]))
    return ticks / os.sysconf("SC_CLK_TCK")


class Attacker:
    """Opens connections to one port, of all kinds in turn."""

    def __init__(
        self, port: int, credentials: Credentials, run_id: int, record: Path, victims: list[int]
    ) -> None:
        """`credentials` are those of machine 1; `record` grows by a line with every round of the victim."""
        self.made: Counter[str] = Counter()
        self.bursts: list[tuple[Mark, Mark]] = []
        """Beginning and end of each."""
        self._victims = victims
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 20 * BURST)  # closed ones need a while to go
        self._endpoint = f"tcp://{ADDRESSES[0]}:{port}"
        self._port = port
        self._run_id = run_id
        self._record = record.open("rb")
        self._rounds = 0
        misled = replace(credentials, public=(KeyPair.make().public,))
        self._guards: dict[str, Callable[[zmq.Socket[bytes]], None]] = {
            "unknown key": lambda s: replace(credentials, own_keys=KeyPair.make()).guard_client(s, 0),
            "wrong server key": lambda s: misled.guard_client(s, 0),
            "other rank": lambda s: credentials.guard_client(s, 0),
            "other run": lambda s: credentials.guard_client(s, 0),
        }  # fmt: skip

    def round(self) -> int:
        """Where the victim is; reads what is new alone, since the attacker's own work shares the machine."""
        self._rounds += self._record.read().count(b"\n")
        return self._rounds

    def _mark(self) -> Mark:
        return Mark(self.round(), sum(map(processor_seconds, self._victims)))

    def burst(self, count: int) -> None:
        """Opens so many connections at once, holds them a little, and closes them."""
        first = self._mark()
        sockets = [self._connect(KINDS[self.made.total() % len(KINDS)]) for _ in range(count)]
        time.sleep(SETTLE)
        for sock in sockets:
            sock.close()
        self.bursts.append((first, self._mark()))

    def _connect(self, kind: str) -> Connection:
        self.made[kind] += 1
        if kind == "raw bytes":
            plain = socket.create_connection((ADDRESSES[0], self._port), 5.0)
            plain.sendall(os.urandom(256))
            return plain
        dealer = self._context.socket(zmq.DEALER)
        dealer.set(zmq.RECONNECT_IVL, -1)
        dealer.set(zmq.LINGER, 0)
        if kind in self._guards:
            self._guards[kind](dealer)
        dealer.connect(self._endpoint)
        sender = 1 if kind == "other rank" else 2
        # Whoever was refused by now has nobody to send to, and would wait for ever.
        with contextlib.suppress(zmq.Again):
            dealer.send_multipart(self._forged(sender, self._run_id + (kind == "other run")), zmq.NOBLOCK)
        return dealer

    def _forged(self, sender: int, run_id: int) -> list[bytes]:
        """A payload for an exchange soon to come, true in every field but its values."""
        body = bytes(Payload.dense(torch.full((DIMENSION,), 1e6)).buffer.numpy().data)
        header = wire.Header(
            wire.Kind.PAYLOAD, run_id, sender, 0, self.round() + 3, layout=dense_layout(DIMENSION).hash, seq=1
        )
        return [header._replace(length=len(body), body_digest=wire.digest(body)).pack(), body]


def attack(attacker: Attacker, connections: int, burst: int, pause: float, victims: list[int]) -> None:
    """Burst after burst, until enough connections were made or the run has ended."""
    # The victims' work is to be measured, not who gets the processor: strangers have one of their own.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while attacker.made.total() < connections:
        # Nobody listens any more where the run ends during a burst.
        with contextlib.suppress(ConnectionError):
            attacker.burst(min(burst, connections - attacker.made.total()))
        time.sleep(pause)
        if not all(os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None for pid in victims):
            return


def round_seconds(record: Path, bursts: list[tuple[Mark, Mark]]) -> tuple[float, float]:
    """The median round of the victim between bursts and during them, in seconds."""
    ends = [record.seconds for record in read_records(record)]
    times = [late - early for early, late in pairwise(ends)]
    under = {round for first, last in bursts for round in range(first.round, last.round)}
    last = max(under, default=0)
    during = [t for round, t in enumerate(times) if round in under]
    between = [t for round, t in enumerate(times[:last]) if round not in under]
    return statistics.median(between or [0.0]), statistics.median(during or [0.0])


def work_per_round(bursts: list[tuple[Mark, Mark]]) -> tuple[float, float]:
    """What the nodes compute in a round between bursts and during them, in seconds of one processor."""
    between = [(early[1], late[0]) for early, late in pairwise(bursts)]
    return _work_per_round(between), _work_per_round(bursts)


def _work_per_round(spans: list[tuple[Mark, Mark]]) -> float:
    rounds = sum(late.round - early.round for early, late in spans)
    return sum(late.processor_seconds - early.processor_seconds for early, late in spans) / max(1, rounds)


def refusals(records: Path) -> Counter[str]:
    """What the victim counted, by reason."""
    return sum((Counter(record.refused) for record in read_records(records)), Counter())


def model_of(folder: Path) -> str:
    """The hash of all models."""
    return str(json.loads((folder / "run" / "summary.json").read_text())["model_hash"])


def losses(folder: Path) -> list[float | None]:
    """Rank 0's loss in every round: a forged model would show in the round after it, and may fade later."""
    return [record.loss for record in read_records(folder / "run" / "records" / "00000.jsonl")]


def run_attacked(folder: Path, options: argparse.Namespace) -> Attacker:
    """Two machines that are attacked; raises RuntimeError when they do not end well."""
    make_keys(folder / "keys", 2)
    words = [*overrides(options.rounds, ADDRESSES), f"security={{keys: {folder / 'keys'}}}"]
    pids = [launch(folder / str(machine), [*words, f"machine={machine}"]) for machine in range(2)]
    victim = folder / "0"
    try:
        wait_until_there(victim / "id")
        record = victim / "run" / "records" / "00000.jsonl"
        wait_until_there(record)
        credentials = load_credentials(folder / "keys", 1, 2)
        attacker = Attacker(BASE, credentials, int((victim / "id").read_text()), record, pids)
        attack(attacker, options.connections, options.burst, options.pause, pids)
    except BaseException:
        wait_for(pids, 0.0)
        raise
    codes = wait_for(pids, RUN_SECONDS)
    if codes != [0, 0]:
        raise RuntimeError(f"exit codes {codes}:\n{(victim / 'out').read_text()[-2000:]}")
    return attacker


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    options.add_argument("--connections", type=int, default=10_000)
    options.add_argument("--rounds", type=int, default=20_000)
    options.add_argument("--burst", type=int, default=BURST, help="connections at once")
    options.add_argument("--pause", type=float, default=PAUSE, help="seconds between two bursts")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="dn-", dir="/tmp") as name:
        folder = Path(name)
        attacker = run_attacked(folder, arguments)
        record = folder / "0" / "run" / "records" / "00000.jsonl"
        alone = launch(folder / "alone", overrides(arguments.rounds, ADDRESSES[:1]))
        (code,) = wait_for([alone], RUN_SECONDS)
        same = code == 0 and model_of(folder / "alone") == model_of(folder / "0")
        same = same and losses(folder / "alone") == losses(folder / "0")
        times, work = round_seconds(record, attacker.bursts), work_per_round(attacker.bursts)
        refused = refusals(record)
    made = dict(attacker.made)
    print(f"connections made: {attacker.made.total()} ({made}) in {len(attacker.bursts)} bursts")
    print(f"refused by rank 0: {dict(refused)}")
    verdict = "yes: no message got through" if same else "NO"
    print(f"every round and the models as in a run that nobody attacked: {verdict}")
    for title, (between, during) in (("median round", times), ("processor time of all nodes a round", work)):
        print(f"{title}: {1e3 * between:.3f} ms between bursts, {1e3 * during:.3f} ms during bursts")
    return 0 if same and attacker.made.total() >= arguments.connections else 1


if __name__ == "__main__":
    result = main()
    sys.stdout.flush()
    # Not sys.exit: a context whose clients were refused may wait for them for ever.
    os._exit(result)
