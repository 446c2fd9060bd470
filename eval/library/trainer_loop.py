"""Hugging Face's Trainer on every rank, which exchanges models with its neighbors after every second step.

    decentnode launch --nodes 4 eval/library/trainer_loop.py out [--steps 60] [--resume-from checkpoint-N]

A vision transformer with random weights; the callback is all that decentnode adds.
"""

from typing import Any

import torch
import transformers
from _digits_loop import BATCH, GRAPH, LoopOptions, options_of
from torch import Tensor
from torch.utils.data import TensorDataset
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

from decentnode.parallel.hugging_face import DecentralizedTrainerCallback, single_process

CONFIG = ViTConfig(
    image_size=8, patch_size=2, num_channels=1, num_labels=10, hidden_size=32, num_hidden_layers=2,
    num_attention_heads=2, intermediate_size=64, hidden_dropout_prob=0.1,
)  # fmt: skip


def batch(samples: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Samples as the model names them."""
    return dict(zip(("pixel_values", "labels"), map(torch.stack, zip(*samples, strict=True)), strict=True))


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(1) == prediction.label_ids).mean())}


class Failure(transformers.TrainerCallback):
    """Ends the last rank with an error where the options ask for it."""

    def __init__(self, options: LoopOptions) -> None:
        self._options = options

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._options.fails_at(state.global_step + 1)


def main() -> None:
    options = options_of(__doc__)
    transformers.logging.set_verbosity_error()
    resume_from = str(options.folder / options.resume_from) if options.resume_from else None
    if resume_from:
        # The Trainer does not restore all weights of this model: it has other names for them in files.
        model = ViTForImageClassification.from_pretrained(resume_from)
    else:
        model = ViTForImageClassification(CONFIG)
    callback = DecentralizedTrainerCallback(
        graph=GRAPH, sharing=options.sharing, steps_per_round=options.steps_per_round
    )
    part: TensorDataset = options.own_part()
    with single_process():
        arguments = TrainingArguments(
            str(options.folder), max_steps=options.steps, per_device_train_batch_size=BATCH, use_cpu=True,
            learning_rate=3e-3, lr_scheduler_type="constant_with_warmup", warmup_steps=5, save_steps=10,
            eval_strategy="steps", eval_steps=20, report_to="none", disable_tqdm=True, logging_steps=1000,
        )  # fmt: skip
        trainer = Trainer(
            model, arguments, batch, part, options.test_part(), compute_metrics=accuracy,
            callbacks=[callback, Failure(options)],
        )  # fmt: skip
    with callback:
        trainer.train(resume_from_checkpoint=resume_from)
    options.finish(model, trainer.state.global_step)


if __name__ == "__main__":
    main()
