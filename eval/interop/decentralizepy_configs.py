"""Imports every INI file of decentralizepy below a folder, runs it on samples, and prints a table.

    git clone https://github.com/sacs-epfl/decentralizepy
    python eval/interop/decentralizepy_configs.py decentralizepy [--rounds 2] [--nodes 8]

The files are those of its tutorials and of `eval/step_configs`. Each is imported as its users would do it,
with the flags of its driver, and runs with `dataset.sample: true` as real nodes, two steps in a round. Exit
code 1 if one is not imported, or does not finish.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

LIMIT = 300
"""Seconds of one run, with its start."""
HEADINGS = ("file", "dataset", "model", "sharing", "imported", "run", "seconds", "tested")


@dataclass
class Row:
    """What became of one file; the last two are empty where it did not run."""

    file: str
    dataset: str = ""
    model: str = ""
    sharing: str = ""
    imported: str = ""
    run: str = ""
    seconds: str = ""
    tested: str = ""

    @property
    def is_good(self) -> bool:
        """Whether the file was imported and has run to its end."""
        return self.run == "finished"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="a copy of decentralizepy, or any folder of INI files")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=8)
    chosen = parser.parse_args()
    files = sorted(chosen.folder.rglob("*.ini"))
    if not files:
        print(f"{chosen.folder}: has no INI files", file=sys.stderr)
        return 2
    rows = []
    for file in files:
        with tempfile.TemporaryDirectory(prefix="imported-") as folder:
            rows.append(tried(file, chosen.folder, Path(folder), chosen.rounds, chosen.nodes))
        print(
            f"{len(rows)}/{len(files)} {rows[-1].file}: {rows[-1].run or rows[-1].imported}", file=sys.stderr
        )
    print(table(rows))
    good = sum(row.is_good for row in rows)
    print(f"\n{good} of {len(rows)} files are imported and run")
    return int(good < len(rows))


def tried(file: Path, root: Path, folder: Path, rounds: int, nodes: int) -> Row:
    """Imports and runs one file."""
    row, result = Row(str(file.relative_to(root))), folder / "imported.yaml"
    graph = folder / "ring.edges"
    graph.write_text("\n".join([str(nodes), *(f"{i} {(i + 1) % nodes}" for i in range(nodes)), ""]))
    flags = ["-ms", "1", "-ps", str(nodes), "-is", str(rounds), "-ta", str(rounds), "-gf", str(graph)]
    done = decentnode("import", str(file), *flags, "--out", str(result))
    if done.returncode:
        row.imported = last_line(done)
        return row
    row.imported = done.stderr.strip().removeprefix(f"{file}: ").split(":")[0] or "all keys"
    values = yaml.safe_load(result.read_text())
    row.dataset, row.model, row.sharing = (named(values[key]) for key in ("dataset", "model", "sharing"))
    words = ["dataset.sample=true", "training.steps_per_round=2", "evaluation.figures=false"]
    began = time.monotonic()
    done = decentnode("run", str(result), f"run_dir={folder}/run", *words)
    row.seconds = f"{time.monotonic() - began:.0f}"
    row.run = "finished" if not done.returncode else last_line(done)
    if row.is_good:
        summary = json.loads((folder / "run" / "summary.json").read_text())
        row.tested = ", ".join(f"{name} {value['mean']:.3g}" for name, value in summary["test"].items())
    return row


def decentnode(*words: str) -> "subprocess.CompletedProcess[str]":
    """Runs a command of decentnode; one that takes too long counts as failed."""
    command = [sys.executable, "-m", "decentnode", *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"not finished after {LIMIT} s")


def last_line(done: "subprocess.CompletedProcess[str]") -> str:
    """The last line of what a command says."""
    return ((done.stderr or done.stdout).strip().splitlines() or [""])[-1]


def named(section: object) -> str:
    """The name of a plug-in, with those of its transforms."""
    if not isinstance(section, dict):
        return str(section)
    transforms = ", ".join(map(named, section.get("transforms", ())))
    return f"{section['name']} ({transforms})" if transforms else str(section["name"])


def table(rows: list[Row]) -> str:
    """The rows as a table of Markdown."""
    cells = [HEADINGS, *(tuple(getattr(row, name) for name in HEADINGS) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


if __name__ == "__main__":
    sys.exit(main())
