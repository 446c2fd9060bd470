"""Kills a process at random instants while it writes records, checkpoints and summaries, and fills the disk.

    python eval/reliability/torn_files.py --kills 1000
    python eval/reliability/torn_files.py --kills 0 --disks      # as root: small disks are mounted

After each kill every file must be readable, and none older than what the writer had acknowledged.
"""

import argparse
import contextlib
import gc
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import torch

from decentnode.core.line_file import LineFile
from decentnode.errors import BadInput, ExitCode
from decentnode.formats.reader import SCHEMA, read_object
from decentnode.formats.records import RoundRecord, read_records, write_atomically
from decentnode.node.checkpoint import store as checkpoint
from decentnode.node.checkpoint.checkpoint_file import CheckpointFile
from decentnode.node.checkpoint.store import RunStamp

STAMP = RunStamp(1, 0, "torn")
RANKS = range(2)
"""Nodes whose checkpoints are in one file."""
ELEMENTS = 20_000
LONGEST = 0.05
"""Seconds that a writer lives at most, once it writes."""
TINY = Path(__file__).with_name("tiny.yaml")
_RECORD, _CHECKPOINT, _SUMMARY = range(3)
_WORD = struct.Struct("<Bq")


@dataclass
class Found:
    """What came out of all kills."""

    kills: int = 0
    rounds: int = 0
    amid: int = 0
    """Kills that left something half written, which is removed and never read."""
    wrongs: list[str] = field(default_factory=list)


def write_for_ever(folder: Path, first: int, acknowledge: int) -> NoReturn:
    """One round after the other; each file that was written is acknowledged with its round."""
    records = LineFile(folder / "00000.jsonl")
    directory, round = folder / checkpoint.FOLDER, first
    file = CheckpointFile(RANKS)
    checkpoint.clean_up(directory / file.name)
    while True:
        records.append(msgspec.json.encode(RoundRecord(0, round)))
        os.write(acknowledge, _WORD.pack(_RECORD, round))
        save(directory, file, round)
        os.write(acknowledge, _WORD.pack(_CHECKPOINT, round))
        for old in checkpoint.rounds(directory, 0)[:-2]:
            checkpoint.delete(directory, RANKS, old)
        write_atomically(folder / "summary.json", {"schema": SCHEMA, "round": round})
        os.write(acknowledge, _WORD.pack(_SUMMARY, round))
        round += 1


def save(directory: Path, file: CheckpointFile, round: int) -> None:
    """Saves all nodes of the file; raises OSError."""
    problems: list[str] = []
    for rank in RANKS:
        file.add(directory, rank, round, state_of(round), STAMP, problems.append)
    if problems != [""] * len(RANKS):
        raise OSError(*problems)


def state_of(round: int) -> dict[str, Any]:
    """A state by which its round can be told in every place."""
    return {"round": round, "vector": torch.full((ELEMENTS,), float(round)), "steps": [round, (round, None)]}


def kill_once(folder: Path, first: int, chance: random.Random) -> dict[int, int]:
    """Starts a writer and kills it; the last rounds that it acknowledged, by kind of file."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        write_for_ever(folder, first, write)
    os.close(write)
    # The first word says that it writes; how long it goes on from there is left to chance.
    content = os.read(read, _WORD.size)
    time.sleep(chance.uniform(0.0, LONGEST))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while piece := os.read(read, 1 << 16):
        content += piece
    os.close(read)
    return dict(_WORD.iter_unpack(content[: len(content) // _WORD.size * _WORD.size]))


def wrongs(folder: Path, acknowledged: dict[int, int]) -> list[str]:
    """What is torn, or older than it may be."""
    damaged: list[str] = []
    try:
        records = [record.round for record in read_records(folder / "00000.jsonl")]
        if records != list(range(len(records))) or len(records) <= acknowledged.get(_RECORD, -1):
            damaged.append(f"records end with {records[-1:]}, acknowledged: {acknowledged}")
        for rank in RANKS:
            newest = checkpoint.newest(folder / checkpoint.FOLDER, rank, report_damage=damaged.append)
            if newest is None:
                if _CHECKPOINT in acknowledged:
                    damaged.append(f"no checkpoint, acknowledged: {acknowledged}")
            elif newest.round < acknowledged.get(_CHECKPOINT, -1) or not is_whole(newest):
                damaged.append(f"checkpoint of round {newest.round}, acknowledged: {acknowledged}")
        if (
            _SUMMARY in acknowledged
            and read_object(folder / "summary.json")["round"] < acknowledged[_SUMMARY]
        ):
            damaged.append(f"an old summary, acknowledged: {acknowledged}")
    except BadInput as error:
        damaged.append(str(error))
    return damaged


def is_whole(newest: checkpoint.Checkpoint) -> bool:
    """Whether everything in it is of its round."""
    expected = state_of(newest.round)
    vector, other = newest.state.pop("vector"), expected.pop("vector")
    return bool(torch.equal(vector, other)) and newest.state == expected


def kill_often(folder: Path, kills: int, seed: int = 1) -> Found:
    """Kills writers that go on where the last one was killed."""
    torch.set_num_threads(1)
    gc.freeze()
    damage, chance = Found(), random.Random(seed)
    for _ in range(kills):
        acknowledged = kill_once(folder, damage.rounds, chance)
        damage.kills += 1
        tensors = folder.rglob(f"*{checkpoint.TENSORS}")
        lacks_manifest = any(not path.with_suffix(checkpoint.MANIFEST).exists() for path in tensors)
        damage.amid += lacks_manifest or any(folder.rglob("*.tmp"))
        damage.wrongs += wrongs(folder, acknowledged)
        path = folder / "00000.jsonl"
        damage.rounds = len(read_records(path)) if path.exists() else 0
    return damage


# Disks that take nothing any more, mounted in a namespace of its own.


def run_on(disk: Path, rounds: int, *overrides: str) -> "subprocess.Popen[str]":
    """A run that saves its nodes on that disk all the time."""
    words = ["run", str(TINY), f"run_dir={disk}/run", f"rounds={rounds}", "checkpoint.every=5", *overrides]
    return subprocess.Popen(
        [sys.executable, "-m", "decentnode", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for_round(disk: Path, round: int) -> None:
    """Until rank 0 has recorded it."""
    record, limit = disk / "run" / "records" / "00000.jsonl", time.monotonic() + 60
    while not record.exists() or record.read_bytes().count(b"\n") <= round:
        if time.monotonic() > limit:
            raise SystemExit(f"round {round} was not reached")
        time.sleep(0.02)


def mount(disk: Path, options: str) -> None:
    """Mounts a small disk, or mounts it anew with other options."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], check=True)


def fill_a_disk(disk: Path) -> list[str]:
    """A disk that is full from some round on: exit 4, whole files, and a run that goes on with room."""
    disk.mkdir()
    mount(disk, "size=24m")
    process = run_on(disk, 1500)
    wait_for_round(disk, 60)
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 512)
    text, _ = process.communicate(timeout=180)
    saved = {rank: checkpoint.newest(disk / "run" / checkpoint.FOLDER, rank) for rank in range(8)}
    rounds = {rank: lines.round + 1 if lines else 0 for rank, lines in saved.items()}
    print(f"full disk: exit {process.returncode}; newest checkpoints after rounds {rounds}")
    print("   ", "\n    ".join(line for line in text.splitlines() if "space" in line))
    wrong = [] if process.returncode == ExitCode.FAILED else [f"full disk: exit {process.returncode}, not 4"]
    filler.unlink()
    code = subprocess.run(
        [sys.executable, "-m", "decentnode", "resume", f"{disk}/run"], check=False
    ).returncode
    return (
        wrong if code == ExitCode.OK else [*wrong, f"after the disk was full: exit {code} of the resumed run"]
    )


def write_protect_checkpoints(disk: Path) -> list[str]:
    """Checkpoints on a disk that becomes read-only: training goes on, and those that are there stay."""
    disk.mkdir()
    process = run_on(disk, 3000, "checkpoint.every=0")
    wait_for_round(disk, 30)
    folder = disk / "run" / checkpoint.FOLDER
    folder.mkdir()
    mount(folder, "size=4m")
    save(folder, CheckpointFile(RANKS), 7)
    mount(folder, "remount,ro")
    process.send_signal(signal.SIGTERM)
    text, _ = process.communicate(timeout=60)
    newest = checkpoint.newest(folder, 0)
    print(f"read-only disk: exit {process.returncode}; newest checkpoint: {newest and newest.round + 1}")
    print("   ", "\n    ".join(line for line in text.splitlines() if "ead-only" in line))
    whole = newest is not None and newest.round == 7 and is_whole(newest)
    return (
        []
        if whole and "Read-only" in text
        else ["read-only disk: a checkpoint was harmed, or nothing was said"]
    )


def main() -> None:
    """Prints what was found; exit code 1 when something was torn."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--disks", action="store_true", help="also try disks that are full or read-only (root)"
    )
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.inside:
        wrong = fill_a_disk(chosen.inside / "full") + write_protect_checkpoints(chosen.inside / "protected")
        raise SystemExit("\n".join(wrong) or 0)
    with tempfile.TemporaryDirectory() as name:
        began = time.monotonic()
        kills = kill_often(Path(name), chosen.kills, chosen.seed)
        print(
            f"{kills.kills} kills over {kills.rounds} rounds in {time.monotonic() - began:.0f} s, "
            f"{kills.amid} amid a file: {len(kills.wrongs)} wrong"
        )
        print(*kills.wrongs, sep="\n", end="")
        code = 1 if kills.wrongs else 0
        if chosen.disks:
            words = ["unshare", "-m", sys.executable, __file__, "--inside", name]
            code |= subprocess.run(words, check=False).returncode
    raise SystemExit(code)


if __name__ == "__main__":
    main()
