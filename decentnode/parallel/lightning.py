"""A callback for the Trainer of Lightning, `lightning` or `pytorch_lightning`.

    from decentnode.parallel.lightning import DecentralizedCallback, single_process

    callback = DecentralizedCallback(graph="ring", sharing="choco")
    with single_process():
        trainer = Trainer(max_epochs=10, callbacks=[callback], default_root_dir=f"out/{rank}")
    trainer.fit(module, loader)

Every rank has a Trainer with one device and a folder of its own (docs/own_loop_frameworks.md).
"""

import random
from typing import Any

import numpy as np
import torch

from decentnode.errors import BadInput
from decentnode.parallel.framework_callback import FrameworkCallback, single_process

__all__ = ["DecentralizedCallback", "single_process"]

KEY = "decentnode"
"""Where the node's state is in a checkpoint of Lightning."""


class DecentralizedCallback(FrameworkCallback):
    """Makes a Trainer of Lightning one rank of a decentralized training.

    A step is a batch in which an optimizer has changed parameters. Checkpoints of the Trainer have the node's
    state, and that of the generators of random numbers, which Lightning does not save.
    """

    FRAMEWORKS = {"lightning.pytorch": "Callback", "pytorch_lightning": "Callback"}  # noqa: RUF012

    def __init__(self, config: Any = None, **options: Any) -> None:
        super().__init__(config, **options)
        self._loaded: dict[str, Any] = {}
        """What a checkpoint has under `KEY`."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Joins the other ranks: the module is on its device now, and has what a checkpoint restores."""
        state = self._loaded.get("node", self._last_state) if trainer.global_step else {}
        if trainer.global_step and not state:
            raise BadInput(
                f"{trainer.ckpt_path}: no state of a node; a Trainer saves it with this callback and without "
                "save_weights_only"
            )
        self._join(pl_module, trainer.optimizers, trainer.world_size, state)
        if self._loaded and not trainer.is_last_batch:
            # Within an epoch its loader was started before the state was saved, so that it drew earlier.
            _restore_generators(self._loaded["generators"])
        self._loaded = {}

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Exchanges and mixes after the last step of a round; ends the training when the run is over."""
        if not self._step():
            trainer.should_stop = True

    def on_validation_start(self, *_: Any) -> None:
        """Keeps the others waiting."""
        self._begin_pause()

    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        """Logs the metrics of the model."""
        self._log(trainer.callback_metrics)
        self._end_pause()

    def on_train_end(self, *_: Any) -> None:
        """Leaves."""
        self.leave()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Leaves, so that the others do not wait for this rank."""
        self.leave(True, exception)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Adds the node's state to the checkpoint."""
        checkpoint[KEY] = {"node": self._node_state(), "generators": _generators()}

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Keeps the node's state for the start of the training."""
        if trainer.state.fn == "fit" and KEY in checkpoint:
            self._loaded = checkpoint[KEY]
            _restore_generators(self._loaded["generators"])


def _generators() -> dict[str, Any]:
    """The states of the global generators, of types that `torch.load(weights_only=True)` accepts."""
    of_numpy = np.random.get_state(legacy=False)
    of_numpy["state"]["key"] = of_numpy["state"]["key"].tolist()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": of_numpy,
        "random": random.getstate(),
    }


def _restore_generators(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    if states["cuda"]:
        torch.cuda.set_rng_state_all(states["cuda"])
    np.random.set_state(states["numpy"])
    random.setstate(states["random"])
