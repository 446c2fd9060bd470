"""Lightning's Trainer on every rank, which exchanges models with its neighbors after every second step.

    decentnode launch --nodes 4 eval/library/lightning_loop.py out [--steps 60] [--resume-from NAME.ckpt]

A module, a loader and a Trainer as for one process; the callback is all that decentnode adds.
"""

from typing import Any

import lightning.pytorch as lightning
import torch
from _digits_loop import BATCH, GRAPH, LoopOptions, network, options_of
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler

from decentnode.parallel.lightning import DecentralizedCallback, single_process


class Classifier(lightning.LightningModule):
    """Trains the network to name digits."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.network(images), labels)

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        images, labels = batch
        self.log("accuracy", (self.network(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)}


class Failure(Callback):
    """Ends the last rank with an error where the options ask for it."""

    def __init__(self, options: LoopOptions) -> None:
        self._options = options

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        self._options.fails_at(trainer.global_step + 1)


def main() -> None:
    options = options_of(__doc__)
    part = options.own_part()
    # Lightning tells it the epoch, so that an epoch's order does not depend on earlier ones.
    sampler = DistributedSampler(part, num_replicas=1, rank=0)
    loader = DataLoader(part, BATCH, sampler=sampler, drop_last=True)
    checkpoints = ModelCheckpoint(options.folder, "{step}", save_top_k=-1, save_last=True)
    callback = DecentralizedCallback(
        graph=GRAPH, sharing=options.sharing, steps_per_round=options.steps_per_round
    )
    with single_process():
        # Not max_steps: with it, Lightning counts the epochs of a resumed run in another way.
        trainer = lightning.Trainer(
            max_epochs=options.steps // len(loader), accelerator="cpu", devices=1, logger=False,
            enable_progress_bar=False, enable_model_summary=False,
            callbacks=[callback, checkpoints, Failure(options)],
        )  # fmt: skip
    module = Classifier()
    resume_from = options.folder / options.resume_from if options.resume_from else None
    trainer.fit(module, loader, DataLoader(options.test_part(), 120), ckpt_path=resume_from)
    options.finish(module, trainer.global_step)


if __name__ == "__main__":
    main()
