"""The command of passive attacks: attack.

Heavy modules are imported inside.
"""

from decentnode.cli.words import Overrides, RunPath, WithItsCode, app, examples, import_torch
from decentnode.core.streams import print_lines


@app.command(epilog=examples("decentnode attack runs/attacks"))
def attack(
    run: RunPath,
    overrides: Overrides = None,
    with_its_code: WithItsCode = False,
) -> None:
    """Attack what the passive adversaries of a run have recorded, and show what they learn."""
    import_torch()
    import torch

    from decentnode.attacks.report import report

    torch.set_num_threads(1)
    print_lines(report(run, overrides or (), with_its_code))
