"""A callback for the Trainer of Hugging Face's transformers.

    from decentnode.parallel.hugging_face import DecentralizedTrainerCallback, single_process

    callback = DecentralizedTrainerCallback(graph="ring", sharing="choco")
    with single_process():
        arguments = TrainingArguments(output_dir=f"out/{rank}")
        trainer = Trainer(model, arguments, train_dataset=dataset, callbacks=[callback])
    with callback:
        trainer.train()

Every rank has a Trainer with one device and a folder of its own (docs/own_loop_frameworks.md).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from decentnode.errors import BadInput
from decentnode.parallel.framework_callback import FrameworkCallback, single_process
from decentnode.parallel.shared_model import TensorsOfLoop

__all__ = ["DecentralizedTrainerCallback", "single_process"]

FILE = "decentnode.pt"
"""Where the node's state is in a folder `checkpoint-N` of the Trainer."""


class DecentralizedTrainerCallback(FrameworkCallback):
    """Makes a Trainer of transformers one rank of a decentralized training.

    A step is one of the optimizer. Each checkpoint of the Trainer has the node's state as a file. The Trainer
    does not tell a callback which checkpoint it continues from: it is that of the same step in `output_dir`,
    or `resume_from`.
    """

    FRAMEWORKS = {"transformers": "TrainerCallback"}  # noqa: RUF012

    def __init__(self, config: Any = None, *, resume_from: str | Path | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self._resume_from = resume_from

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: Any, optimizer: Any, **_: Any
    ) -> None:
        """Joins the other ranks: the model is on its device now, and has what a checkpoint restores."""
        node_state = self._saved(args, state, model) if state.global_step else {}
        # Accelerate's wrapper of an optimizer has no hooks.
        optimizers = [getattr(optimizer, "optimizer", optimizer)]
        self._join(model, optimizers, args.world_size, node_state)
        if dist.is_initialized() and dist.get_world_size() > 1:
            raise BadInput(
                "where torch.distributed is initialized, a Trainer saves models on its rank 0 alone; use "
                "communication: zeromq"
            )

    def _saved(self, args: Any, state: Any, model: nn.Module) -> dict[str, Any]:
        """The node's state in the checkpoint from which the Trainer continues; raises BadInput."""
        file = Path(self._resume_from or Path(args.output_dir, f"checkpoint-{state.global_step}"), FILE)
        if not file.exists():
            raise BadInput(
                f"{file}: no state of a node; name the checkpoint that has one as the callback's resume_from"
            )
        saved: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        if saved["digest"] != self._digest(model):
            raise BadInput(
                f"{file.parent}: the Trainer has restored other weights than it saved, as transformers 5.24 "
                "does where files have other names for weights; give it the model of from_pretrained() of "
                "this folder"
            )
        state_of_node: dict[str, Any] = saved["node"]
        return state_of_node

    def _digest(self, model: nn.Module) -> str:
        return TensorsOfLoop(model, self._options.get("shared")).described.digest

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Exchanges and mixes after the last step of a round; ends the training when the run is over."""
        if not self._step():
            control.should_training_stop = True
            control.should_save |= args.save_strategy != "no"

    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        """Keeps the others waiting."""
        self._begin_pause()

    def on_evaluate(self, *_: Any, metrics: Mapping[str, Any], **__: Any) -> None:
        """Logs the metrics of the model."""
        self._log(metrics)
        self._end_pause()

    def on_save(self, args: Any, state: Any, control: Any, *, model: Any, **_: Any) -> None:
        """Saves the node's state into the checkpoint."""
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        if not args.save_only_model and folder.is_dir():
            torch.save({"node": self._node_state(), "digest": self._digest(model)}, folder / FILE)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Leaves."""
        self.leave()
