"""The output of `decentnode attack`: what passive adversaries learn from what they have recorded."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from decentnode.attacks.attackers import attacked, passive
from decentnode.attacks.passive.record import Record
from decentnode.config.loader import load
from decentnode.core.registry import import_from, name_of, reading_only
from decentnode.core.text import counted, first_line
from decentnode.errors import BadInput, ConfigError
from decentnode.formats.reader import code_folders
from decentnode.formats.run import run_directory
from decentnode.node.experiment import Experiment
from decentnode.results.attack_results import AttackResult, read_results, write_results

COLUMNS = {
    "auc": "AUC", "tpr_at_1_percent": "TPR@1%", "epsilon_lower": "eps >=", "ssim": "SSIM", "psnr": "PSNR",
    "accuracy": "accuracy", "chance": "chance", "l1_error": "L1",
}  # fmt: skip
NETWORK_COLUMNS = {
    "hops": "hops", "solvable": "solvable", "relative_error": "error", "deviations": "in devs", "auc": "AUC",
    "auc_bound": "AUC <=", "accuracy": "accuracy", "chance": "chance", "f1": "F1", "ssim": "SSIM",
    "psnr": "PSNR",
}  # fmt: skip
"""The columns of attacks that solve for all rounds together."""


def report(run: Path, overrides: Sequence[str], with_its_code: bool = False) -> Iterator[str]:
    """Attacks, and gives the lines to print; raises BadInput.

    Results replace those of the same attack by the same adversary in `attacks.jsonl`. `with_its_code`:
    whether the run's copies of plug-ins may run; only those that `overrides` name do otherwise.
    """
    run = run_directory(run)
    config = run / "config.yaml"
    if with_its_code:
        import_from(*code_folders(run), first=True)
    else:
        try:
            with reading_only():
                load(config)
        except ConfigError as error:
            if not code_folders(run):
                raise
            raise BadInput(f"{first_line(error)}; to run that code, too: --with-its-code") from error
    experiment = Experiment.from_settings(load(config, overrides), run_dir=run)
    attacks = passive(experiment)
    if not attacks:
        raise BadInput(f"{config}: adversaries: nobody listens in this run; name some, such as membership")
    spent = _accounted(run)
    results: list[AttackResult] = []
    titles: tuple[str, ...] = ()
    for result in attacked(experiment, run, attacks):
        if titles != (titles := tuple(columns_of(result).values())):
            head = f"{'attack':<22} {'adversary':<14} {'victim':>6} {'round':>6}"
            yield head + "".join(f"{title:>9}" for title in titles)
        results.append(result)
        yield line(result)
        if result.epsilon_lower is not None and (most := spent.get(str(result.victim))) is not None:
            yield f"{'':<22} accounted for rank {result.victim}: epsilon {most:.4g}"
    for attack in attacks:
        if not isinstance(attack, Record) and not any(
            result.adversary == attack.adversary and result.attack.startswith(name_of(attack))
            for result in results
        ):
            why = "found nothing: too few messages are recorded (every)"
            yield f"{name_of(attack):<22} {attack.adversary:<14} {why}"
    replaced = {(result.attack, result.adversary) for result in results}
    kept = [result for result in read_results(run) if (result.attack, result.adversary) not in replaced]
    write_results(run, [*kept, *results])
    yield f"{counted(len(results), 'result')} of {counted(len(attacks), 'attack')} in {run / 'attacks.jsonl'}"


def columns_of(result: AttackResult) -> dict[str, str]:
    """The measures that the row of a result has, with their titles."""
    is_of_network = any(value is not None for value in (result.solvable, result.hops, result.f1))
    return NETWORK_COLUMNS if is_of_network else COLUMNS


def line(result: AttackResult) -> str:
    """A result as a row of the table."""
    victim = "all" if result.victim is None else str(result.victim)
    values = (getattr(result, name) for name in columns_of(result))
    cells = "".join(f"{'-' if v is None else v if isinstance(v, int) else f'{v:.3f}':>9}" for v in values)
    return f"{result.attack:<22} {result.adversary:<14} {victim:>6} {result.round + 1:>6}{cells}"


def _accounted(run: Path) -> dict[str, float]:
    """The epsilon of each rank by the accountant, where the summary has it."""
    try:
        summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    except (OSError, ValueError):
        return {}
    return dict((summary.get("privacy") or {}).get("epsilon") or {})
