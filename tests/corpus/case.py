"""A case of the corpus: files, a command line, and what it must say about them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.corpus.table import fits

ROOT = Path(__file__).resolve().parents[2]
MOST_LETTERS = 360
"""The limit for one line, without paths of the test's folder; a list of all plug-ins of a kind comes near."""

COMMON: dict[str, str] = {
    "ring.edges": "4\n0 1\n1 2\n2 3\n3 0\n",
    "star.edges": "4\n0 1\n0 2\n0 3\n",
    "bad.edges": "4\n0 9\n1 1\n2 3\n0 1\n1 2\n",
    "asymmetric.adj": "4\n1\n0 2\n3\n2 0\n",
    "mixed.edges": "4\n0 1\n1 0\n1 2\n2 1\n2 3\n3 0\n0 3\n",
    "bad_weights.txt": "0.5 0.5 0 0\n",
    "devices.csv": "class,factor,share\nphone,4,0.5\nlaptop,1,0.5\n",
    "paces.csv": "1 1 1\n1 2\n1 1 1\n1 1 1\n",
    "full/file": "of somebody\n",
    "there/machines.json": "{}\n",
    "torn/run.json": '{"schema": 1, "ru',
    "corpus_syntax.py": "def f(:\n",
    "corpus_quits.py": "raise SystemExit(0)\n",
    "corpus_broken.py": "1 / 0\n",
    "corpus_graphs.py": """\
from decentnode.graph import (AperiodicGraph, Graph, PeriodicGraph, RedrawnGraph)

PAIRS = ((1, 0, 3, 2), (3, 2, 1, 0), (2, 3, 0, 1))


class Changes(Graph):
    num_nodes = 4

    def targets(self, rank, round):
        return (PAIRS[round % 3][rank],)


class Honest(Changes):
    period = None


class Repeats(Changes, PeriodicGraph):
    period = 3


class Late(Changes, PeriodicGraph):
    period = 2


class Apart(Changes, PeriodicGraph):
    period = 1

    def targets(self, rank, round):
        return (rank ^ 1,)


class Lonely(Apart):
    def targets(self, rank, round):
        return ((1, 2), (0, 2), (0, 1), ())[rank]


class Allowed(Apart):
    allow_disconnected = True


class OneWay(AperiodicGraph):
    num_nodes = 4

    def targets(self, rank, round):
        return ((rank + 1) % 4,)


class Pairs(OneWay):
    def targets(self, rank, round):
        return (rank ^ 1,)


class Itself(OneWay):
    def targets(self, rank, round):
        return (rank,)


class Raises(OneWay):
    def targets(self, rank, round):
        return {}[round]


class Redrawn(RedrawnGraph):
    num_nodes = 4

    def edges(self, round):
        return enumerate(PAIRS[round * round % 3])
""",
    "corpus_nets.py": """\
import torch


class Net(torch.nn.Sequential):
    def __init__(self, width=10):
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, width))


class Raises(torch.nn.Module):
    def __init__(self):
        raise KeyError("weights")


class Wide(Net):
    def __init__(self):
        super().__init__()
        self.double()


class Fails(Net):
    def forward(self, x):
        return {}["x"]
""",
}
"""Files that lie beside those of every case."""

BASE = """\
name: trial
seed: 1
rounds: 3
graph: {name: file, path: ring.edges}
mapping:
  machines:
    - {address: 127.0.0.1, nodes: 4}
dataset: {name: digits, partition: {name: dirichlet, alpha: 0.5}}
model: {name: mlp, hidden: [8]}
training:
  optimizer: {name: SGD, lr: 0.1, momentum: 0.9}
  batch_size: 16
  steps_per_round: 5
sharing: {name: gossip, weights: metropolis_hastings}
communication: zeromq
evaluation: {every: 10}
failures: {deadline: 60}
"""


BEGUN = BASE.replace("ring.edges", "../ring.edges")
STATE = (
    '{"schema": 3, "run_id": "0123456789abcdef", "incarnation": 0, "threads": 1, "starts": [], '
    '"dataset": "e32f70fdaa0473b6e12223a7a9c5c971", "code": %s}'
)
"""The hash is that of all digits."""
CODE = '[{"round": 0, "digest": "%s", "files": {"corpus_nets.py": "0"}}]' % ("ab" * 32)
COMMON |= {f"{run}/config.yaml": BEGUN for run in ("begun", "torn", "undecoded", "older")} | {
    "coded/config.yaml": BEGUN.replace("{name: mlp, hidden: [8]}", "corpus_nets:Net"),
    "coded/run.json": STATE % CODE,
    "undecoded/run.json": STATE % "[3]",
    "older/run.json": STATE.replace('"schema": 3', '"schema": 2') % "[]",
}


@dataclass(frozen=True)
class Case:
    """Words of a command line beside some files; `lines` is what it says on standard error, if anything.

    In `lines`, `...` stands for any text and `{here}` for the folder; in both, `{busy}` for a taken port.
    """

    id: str
    words: Sequence[str]
    lines: Sequence[str] = ()
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    modes: Mapping[str, int] = field(default_factory=dict)

    @property
    def has_null(self) -> bool:
        """Whether a word cannot be passed on by a shell."""
        return any("\0" in word for word in self.words)

    def write(self, folder: Path) -> None:
        """Puts the files of the case, and those that all share, into a folder."""
        files = COMMON | dict(self.files)
        for parent in {(folder / name).parent for name in files if "/" in name}:
            parent.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        for name, mode in self.modes.items():
            (folder / name).chmod(mode)

    def command(self, busy: int) -> list[str]:
        """The words with the port in its place."""
        return [word.replace("{busy}", str(busy)) for word in self.words]

    def violations(self, code: int, output: str, folder: Path, busy: int) -> list[str]:
        """Returns what breaks the promise about bad input; nothing for a case that keeps it."""
        lines = output.splitlines()
        wrong = [] if code == 2 else [f"exit code {code}"]
        wrong += ["a traceback"] if "Traceback" in output else []
        bare = [line.replace(str(folder), "") for line in lines]
        wrong += [f"a line of {len(line)} letters" for line in bare if len(line) > MOST_LETTERS]
        if not all(line.isprintable() for line in lines):
            wrong.append("letters that are no text")
        if len(lines) != len(self.lines):
            wrong.append(f"{len(lines)} lines instead of {len(self.lines)}")
        for line, wanted in zip(lines, self.lines, strict=False):
            text = wanted.replace("{here}", str(folder)).replace("{busy}", str(busy))
            if not fits(text, line):
                wrong.append(f"not '{text}' but '{line}'")
        return wrong


def edited(old: str, new: str) -> str:
    """BASE with one thing replaced."""
    assert old in BASE, old
    return BASE.replace(old, new, 1)
