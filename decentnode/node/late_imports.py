"""What nodes would import in their first steps: imported before they are forked, once for all of them."""

import importlib

from decentnode.config.settings import Settings
from decentnode.core.vector import DTYPES
from decentnode.training.optim.uncompiled import trial_step

COMPILER = "torch._dynamo"
"""Takes about as long to import as torch itself. Most runs do without it."""


def import_for_nodes(settings: Settings) -> None:
    """Imports what nodes of these settings would import later, and nothing that they would not."""
    training, model, gradient_sync = (
        settings.training,
        settings.model.make(),
        settings.training.gradient_sync.make(),
    )
    training.prepare()
    # Private steps: the gradients of samples come from torch.func, which imports the compiler.
    if training.privacy is not None or model.uses_compiler or gradient_sync.uses_compiler:
        import_compiler()
    try:
        # An optimizer that imports the compiler all the same does so here.
        trial_step(training.make_optimizer, DTYPES[training.dtype])
    except Exception:  # whatever a plug-in raises; nodes report it if it concerns their parameters
        import_compiler()


def import_compiler() -> None:
    """Imports torch's compiler in this process, for those that are forked from it."""
    importlib.import_module(COMPILER)
