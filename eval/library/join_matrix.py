"""Shows that every scheme gives the same models in a run, in a loop inside a run, and in loops that join.

    python eval/library/join_matrix.py [--only SCHEME ...] [--ways WAY ...]

Prints a table of schemes and ways: `=` where the model hash is that of `decentnode run`, with the same
batches. The ways: `loop` is `training.loop` with a coroutine, inproc; `simulated` is that in virtual time;
`processes` is `training.loop` with a function, in processes of their own; `threads`, `shm` and `tcp` join,
in threads and under torchrun. Asynchronous schemes are compared in virtual time; elsewhere they replay a
recorded schedule. Exit code 1 if a hash differs or a way fails.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

import torch  # noqa: E402

import decentnode  # noqa: E402
from decentnode.core.registry import SHARINGS  # noqa: E402
from decentnode.errors import DecentnodeError  # noqa: E402
from tests.support import own_loops  # noqa: E402

Sections = dict[str, Any]
OVER = {"shm": {"name": "zeromq"}, "tcp": {"name": "zeromq", "local": "tcp"}, "threads": {"name": "inproc"}}
WAYS = ("loop", "simulated", "processes", "threads", "shm", "tcp")
OVERLAPPED = ("gossip", "choco")
LIMIT = 1800.0
"""Seconds of one start of torchrun, which has all schemes."""


def cases() -> dict[str, Sections]:
    """The configuration of each row."""
    rows = {name: own_loops.sections_of(name) for name in SHARINGS.classes()}
    for name in OVERLAPPED:
        overlap = {"name": "inproc", "overlap": True}
        rows[f"{name}, overlap"] = own_loops.sections_of(name, communication=overlap)
    return rows


def over(sections: Sections, way: str) -> Sections:
    """The configuration with the communication of a way."""
    communication = sections["communication"]
    kept = communication if isinstance(communication, dict) else {}
    return {**sections, "communication": {**kept, **OVER[way]}}


def run_hash(sections: Sections, run_dir: Path) -> str:
    """The model hash of a run."""
    run = decentnode.run(sections, run_dir=str(run_dir), progress=False)
    return run.model_hash or f"no models: {run.state}"


class Row:
    """A scheme, and the hashes of its ways."""

    def __init__(self, name: str, sections: Sections, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.is_asynchronous = "time_model" in sections
        self.sections = sections
        self.expected: dict[str, str] = {}
        self.cells: dict[str, str] = {}

    def path(self, way: str) -> Path:
        """A new directory."""
        return self.folder / f"{self.name.replace(', ', '-')}-{way}"

    def begin(self) -> None:
        """Makes the runs that the others are compared with."""
        sections = self.sections
        if self.is_asynchronous:
            self.expected["simulated"] = run_hash(own_loops.simulated(sections), self.path("virtual"))
            recorded = self.path("recorded")
            sections = own_loops.with_schedule(sections, "record")
        else:
            recorded = self.path("run")
        reference = run_hash(sections, recorded)
        self.expected = dict.fromkeys(WAYS, reference) | self.expected
        if self.is_asynchronous:
            self.sections = own_loops.with_schedule(self.sections, "replay", recorded)

    def of(self, way: str) -> Sections:
        """The configuration of a way."""
        if way == "simulated":
            sections = {key: value for key, value in self.sections.items() if key != "time_model"}
            if self.is_asynchronous:
                sections = own_loops.sections_of(self.name)
            return own_loops.with_loop(own_loops.simulated(sections))
        if way == "loop":
            return own_loops.with_loop(self.sections)
        if way == "processes":
            return own_loops.with_loop(over(self.sections, "shm"), "blocking")
        return over(self.sections, way)

    def note(self, way: str, text: str) -> None:
        """Takes a hash, or why there is none."""
        is_hash = len(text) == 64 and " " not in text
        differs = "DIFFERS" if is_hash else text
        self.cells[way] = "=" if text == self.expected[way] else differs

    def perform(self, way: str) -> None:
        """Runs a way that this process can start."""
        try:
            if way == "threads":
                models = own_loops.joined_threads(self.of(way), self.path(way))
                self.note(way, own_loops.hash_of(models))
            else:
                self.note(way, run_hash(self.of(way), self.path(way)))
        except DecentnodeError as error:
            self.note(way, f"{type(error).__name__}: {error}")


def under_torchrun(rows: list[Row], way: str, folder: Path) -> None:
    """Joins under torchrun with all rows, one after the other in the same processes."""
    work = folder / f"{way}.json"
    work.write_text(json.dumps([(row.name, row.of(way), str(row.path(way))) for row in rows]))
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(own_loops.NODES),
         str(Path(__file__)), "--joins", str(work)],
        env={**os.environ, "PYTHONPATH": path}, timeout=LIMIT, check=False,
    )  # fmt: skip
    for row in rows:
        models, problem = [], ""
        for rank in range(own_loops.NODES):
            path = Path(f"{row.path(way)}-{rank}.pt")
            saved = torch.load(path) if path.exists() else "no end"
            if isinstance(saved, str):
                problem = problem or saved
            models.append(saved)
        row.note(way, problem or own_loops.hash_of(models))


def join_all(work: Path) -> None:
    """Joins with each row of a file, as one rank of torchrun; saves the models."""
    rank = int(os.environ["RANK"])
    for _, sections, run_dir in json.loads(work.read_text()):
        try:
            loop = own_loops.OwnLoop(sections, rank)
            loop.join(sections, run_dir=run_dir)
            result: object = loop.train()
        except DecentnodeError as error:
            result = f"{type(error).__name__}: {error}"
        torch.save(result, f"{run_dir}-{rank}.pt")


def show(rows: list[Row], ways: list[str]) -> bool:
    """Prints the table; returns whether all is equal."""
    width = max(len(row.name) for row in rows)
    print(" " * width, *(f"{way:>9}" for way in ways))
    for row in rows:
        marks = [row.cells[way] if len(row.cells[way]) < 10 else "!" for way in ways]
        print(f"{row.name:<{width}}", *(f"{mark:>9}" for mark in marks))
    wrong = [(row, way) for row in rows for way in ways if row.cells[way] != "="]
    for row, way in wrong:
        print(f"{row.name}, {way}: {row.cells[way]}")
    print(f"{len(rows) * len(ways)} cells, {len(wrong)} not equal")
    return not wrong


def main() -> int:
    """Fills in the table; 1 where something is not equal."""
    known = cases()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*known], default=[*known], metavar="SCHEME")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--joins", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.joins is not None:
        join_all(options.joins)
        return 0
    with tempfile.TemporaryDirectory(prefix="joined-") as name:
        folder = Path(name)
        rows = [Row(name, known[name], folder) for name in options.only]
        for row in rows:
            row.begin()
            for way in options.ways:
                if way not in ("shm", "tcp"):
                    row.perform(way)
            print(row.name, row.cells, file=sys.stderr, flush=True)
        for way in options.ways:
            if way in ("shm", "tcp"):
                under_torchrun(rows, way, folder)
        return 0 if show(rows, options.ways) else 1


if __name__ == "__main__":
    sys.exit(main())
