"""What a run of a sweep costs beyond its own rounds: 40 short runs of digits, one after the other.

    python eval/benchmarks/sweep.py [--small] [--runs N]

Wall time of the whole command, minus the sum of the times from the begin of a run's first round to the end
of its last, for each run. Beside it: the same runs as commands of their own, each of which imports torch.
"""

import tempfile
from pathlib import Path
from typing import Any

from _command import CONFIGS, call, run_decentnode
from _report import Target, conclude, median, parser, show

from decentnode.results import read_records
from decentnode.results.run import read_entry

LIMIT = 0.5
"""Seconds of each run beyond its rounds."""
VARIANTS = 8
STUDY = """
base: {base}
axes: {{training.optimizer.lr: {{from: 0.01, to: 0.1, count: {variants}}}}}
seeds: {seeds}
jobs: 1
out: {out}
"""


def rounds_of(run_dir: Path) -> float:
    """Seconds from the begin of the first round of any node to the end of the last."""
    histories = [read_records(path) for path in (run_dir / "records").iterdir()]
    starts = []
    for records in histories:
        first = records[0]
        took = first.train_seconds + first.exchange_seconds + first.mix_seconds + first.evaluate_seconds
        starts.append(first.seconds - took)
    return max(records[-1].seconds for records in histories) - min(starts)


def sweep(variants: int, seeds: int) -> dict[str, Any]:
    """One sweep, as a command."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        out, study = Path(folder) / "out", Path(folder) / "sweep.yaml"
        base = CONFIGS / "sweep.yaml"
        study.write_text(STUDY.format(base=base, variants=variants, seeds=seeds, out=out))
        ended = call(["-m", "decentnode", "sweep", str(study)])
        runs = sorted(path.parent for path in out.glob("*/*/summary.json"))
        entries = [entry for run in runs if (entry := read_entry(run))]
        rounds = [rounds_of(run) for run in runs]
    assert len(runs) == len(entries) == variants * seeds, f"{len(runs)} runs are done"
    beyond = (ended.seconds - sum(rounds)) / len(runs)
    return {
        "runs": len(runs),
        "command_seconds": median([ended.seconds]),
        "rounds_seconds": median([sum(rounds)]),
        "beyond_seconds": median([beyond]),
        "of_the_run_itself": median([e.wall_seconds - r for e, r in zip(entries, rounds, strict=True)]),
        "cpu_seconds": median([ended.cpu_seconds / len(runs)]),
    }


def alone() -> dict[str, Any]:
    """The same run as a command of its own."""
    run = run_decentnode("sweep.yaml", "evaluation.figures=false")
    return {"single_seconds": median([run.seconds]), "cpu_seconds": median([run.cpu_seconds])}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--runs", type=int, default=40, help="a multiple of 8")
    arguments = options.parse_args()
    variants = 2 if arguments.small else VARIANTS
    swept = sweep(variants, 2 if arguments.small else arguments.runs // VARIANTS)
    show(swept)
    figures, ratio = [swept], {"rounds, of the command": swept["rounds_seconds"] / swept["command_seconds"]}
    if not arguments.small:
        single = alone()
        show(single)
        figures.append(single)
        each = swept["command_seconds"] / swept["runs"]
        ratio["a run of the sweep, of a command of its own"] = median([single["single_seconds"] / each])
    targets = [Target("seconds of a run beyond its rounds", swept["beyond_seconds"], "at most", LIMIT)]
    conclude("sweep", arguments.small, figures, ratio, targets)


if __name__ == "__main__":
    main()
