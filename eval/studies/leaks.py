"""What leaks beside the models: python eval/studies/leaks.py [KEY=VALUE ...]

Runs configs/studies/leaks.yaml, attacks what rank 0 has recorded, and prints for each variant how often the
origin of a message is found, by its contents, by its place in time, by the indices that top-k sends and by
its size; and how far an estimate of a neighbor's shares of labels is off. Means over rounds and seeds.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from decentnode.config.loader import load
from decentnode.core.payload import Payload
from decentnode.formats.transcript import Transcript
from decentnode.node.experiment import Experiment
from decentnode.results import Run, Study
from decentnode.results.attack_results import read_results
from decentnode.studies.frontier import aligned, attack_missing, directory_of
from decentnode.studies.sweep import command

STUDY = Path("configs/studies/leaks.yaml")
LISTENER = 0
ATTACKS = ("linkability_loss", "linkability_distance", "linkability_timing")


def main(overrides: Sequence[str]) -> None:
    """Runs what is missing of the study, and prints the table."""
    code = command.sweep(command.SweepRequest(STUDY, overrides))
    if code:
        sys.exit(code)
    directory = directory_of(STUDY, overrides)
    for line in attack_missing(directory):
        print(line)
    headings = [
        "variant",
        "seeds",
        "samples",
        "distance",
        "timing",
        "indices",
        "size",
        "label",
        "L1 of labels",
    ]
    rows = [headings]
    for variant in Study(directory).compared:
        results = [result for run in variant.finished for result in read_results(run.directory)]
        values = [_mean([r.accuracy for r in results if r.attack == name]) for name in ATTACKS]
        indices = _mean([share for run in variant.finished for share in by_indices(run)])
        sizes = _mean([share for run in variant.finished for share in by_size(run)])
        last = max((r.round for r in results), default=0)
        labels = [r for r in results if r.attack == "label_distribution" and r.round == last]
        shares = [_mean([r.accuracy for r in labels]), _mean([r.l1_error for r in labels])]
        rows.append([variant.name, str(len(variant.finished)), *values, indices, sizes, *shares])
    print(*aligned(rows), sep="\n")
    print("Shares of right guesses; chance is 0.25 for the origin, and 0.1 for the label.")
    print("L1 of guessing equal shares: 1.6.")


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{fmean(known):.3f}" if known else "-"


def _transcript(run: Run) -> Transcript:
    transcript = Transcript(run.directory, LISTENER)
    transcript.advance()
    return transcript


def by_indices(run: Run) -> Iterator[float]:
    """In each round the share of messages whose indices are least like those that their sender sent before.

    `by: change` sends coordinates that it has not sent for long.
    """
    experiment = Experiment.from_settings(load(run.directory / "config.yaml"), run_dir=run.directory)
    layout = experiment.schemes.plain().payload_layout(0)
    if layout is None or "indices" not in [field.name for field in layout.fields]:
        return
    before: dict[int, set[int]] = {}
    transcript = _transcript(run)
    for _, lines in sorted(transcript.lines.items()):
        now = {}
        for line in lines:
            content = transcript.content(line)
            if content is not None and line.layout == layout.hash:
                now[line.source] = {*Payload.parse(layout, torch.from_numpy(content))["indices"].tolist()}
        if before and now:
            guesses = {
                v: min(before, key=lambda u: len(before[u] & chosen) / len(before[u] | chosen))
                for v, chosen in now.items()
            }
            yield fmean(v == guess for v, guess in guesses.items())
        before = now or before


def by_size(run: Run) -> Iterator[float]:
    """In each round the share of messages whose size is nearest to the mean of their sender's so far."""
    known: dict[int, list[int]] = {}
    for _, lines in sorted(_transcript(run).lines.items()):
        first = [line for line in lines if line.phase == 0]
        if known and len({line.bytes for line in first}) > 1:
            means = {v: float(np.mean(sizes)) for v, sizes in known.items()}
            guesses = [(line.source, min(means, key=lambda v: abs(means[v] - line.bytes))) for line in first]
            yield fmean(v == guess for v, guess in guesses)
        for line in first:
            known.setdefault(line.source, []).append(line.bytes)


if __name__ == "__main__":
    main(sys.argv[1:])
