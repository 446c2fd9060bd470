"""Shows that no scheme hangs on any graph: the whole product of tests/support/product.py, and more of it.

    python eval/graphs/product.py [--nodes 16] [--chain CHAIN] [--weights RULE] [--only TEXT]
    python eval/graphs/product.py --processes [--local tcp] [--lose] [--jobs N] [--only TEXT]

By default every combination runs in this process, as in the tests, but with all time models, any number of
nodes, transforms or weights. With `--processes` each is a run of eight processes over ZeroMQ and shared
memory, ipc or tcp; `--lose` kills rank 2 in round 1. A combination is right when it ends in time, by itself,
or is refused in one line for each defect. Ends with 1 where one is not.
"""

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "eval" / "reliability")]

import yaml  # noqa: E402
from _runs import Outcome, Trial, run_all  # noqa: E402

from decentnode.errors import ExitCode  # noqa: E402
from tests.support import product  # noqa: E402

LIMIT = 60.0
"""Seconds of a run of processes."""
CHAINS = {
    "none": [],
    "cast": ["cast"],
    "qsgd": ["qsgd"],
    "top_k": [{"name": "top_k", "fraction": 0.3}, "auto"],
    "random_k": [{"name": "random_k", "fraction": 0.5, "shared_mask": True}],
}
KILLED = {"name": "crash", "ranks": 2, "rounds": 1}
CLEAN = (ExitCode.OK, ExitCode.BAD_INPUT)
LOSSY = (*CLEAN, ExitCode.NODES_LOST, ExitCode.FAILED)


def combinations(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and sections of all combinations."""
    for scheme, graph in itertools.product(product.scheme_cases(), product.graph_cases()):
        for model in product.time_models(scheme, graph, all_overlapped=True):
            name = f"{scheme} on {graph}, {model}"
            if options.only not in name:
                continue
            sharing: dict[str, Any] = product.scheme_section(scheme)
            if options.chain != "none":
                sharing["transforms"] = CHAINS[options.chain]
            if options.weights:
                sharing["weights"] = options.weights
            section = product.graph_section(graph, folder, options.nodes)
            yield name, product.sections_of(sharing, section, model, options.nodes)


def in_this_process(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, str]]:
    """Each combination, and what became of it; `wrong: ...` where that is not right."""
    for number, (name, sections) in enumerate(combinations(options, folder)):
        try:
            refused = product.walk(sections, folder / str(number))
            yield name, f"refused: {refused[0]}" if refused else "ran"
        except Exception as error:  # whatever it is, the others are walked, too
            yield name, f"wrong: {error!r}"[:400]


def in_processes(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, str]]:
    """The same with a process for each node."""
    trials = []
    for number, (name, sections) in enumerate(combinations(options, folder)):
        overlap = sections["communication"].get("overlap", False)
        sections["communication"] = {"name": "zeromq", "local": options.local, "overlap": overlap}
        if options.lose:
            sections["faults"] = [KILLED]
        path = folder / f"{number}.yaml"
        path.write_text(yaml.safe_dump(json.loads(json.dumps(sections))))
        trials.append(Trial(name, ("failures.deadline=3", "failures.grace=1"), LIMIT, path))
    for outcome in run_all(trials, options.jobs):
        yield outcome.trial.name, judged(outcome, LOSSY if options.lose else CLEAN)


def judged(outcome: Outcome, codes: tuple[ExitCode, ...]) -> str:
    """What became of a run."""
    last = (outcome.text.strip().splitlines() or [""])[-1]
    if outcome.code is None:
        return f"wrong: did not end within {LIMIT:.0f} s"
    if outcome.code not in codes or "Traceback" in outcome.text or outcome.leftovers:
        return f"wrong: exit code {outcome.code}, {outcome.leftovers or last}"
    return f"refused: {last}" if outcome.code == ExitCode.BAD_INPUT else f"ran, exit code {outcome.code}"


def main() -> int:
    """Walks what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=product.NODES, help="a power of two from 8")
    parser.add_argument("--chain", choices=CHAINS, default="none")
    parser.add_argument("--weights", default="")
    parser.add_argument("--only", default="", help="a part of `SCHEME on GRAPH, TIME MODEL`")
    parser.add_argument("--processes", action="store_true")
    parser.add_argument("--local", choices=("shared_memory", "ipc", "tcp"), default="shared_memory")
    parser.add_argument("--lose", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--refusals", action="store_true", help="print them, too")
    options = parser.parse_args()
    if options.local == "tcp" and options.jobs > 1:
        parser.error("--local tcp needs --jobs 1: all runs take the same ports")
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="dn-product-") as folder:
        walk = in_processes if options.processes else in_this_process
        for name, rows in walk(options, Path(folder)):
            kind = rows.partition(":")[0].partition(",")[0]
            counts[kind] = counts.get(kind, 0) + 1
            if kind == "wrong" or (options.refusals and kind == "refused"):
                print(f"{name}: {rows}", flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    return int("wrong" in counts)


if __name__ == "__main__":
    sys.exit(main())
