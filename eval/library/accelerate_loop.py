"""A loop with Accelerate on every rank, which exchanges models with its neighbors after every second step.

    decentnode launch --nodes 4 eval/library/accelerate_loop.py out [--steps 60] [--resume-from checkpoint_N]

Accelerate prepares, accumulates gradients of two batches, saves and loads; the lines with `node` are all that
decentnode adds.
"""

import torch
from _digits_loop import BATCH, GRAPH, network, options_of
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch import nn
from torch.utils.data import DataLoader

import decentnode
from decentnode.parallel.framework_callback import single_process

ACCUMULATED = 2
SAVE_EVERY = 10


def main() -> None:
    options = options_of(__doc__)
    with single_process():
        # Sampled by seed and epoch, so that an epoch's order does not depend on earlier ones.
        sampling = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=options.rank)
        accelerator = Accelerator(
            cpu=True, gradient_accumulation_steps=ACCUMULATED, dataloader_config=sampling
        )
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.9)
    # A generator of its own, because a loader draws when it starts, in a resumed epoch, too.
    loader = DataLoader(options.own_part(), BATCH, shuffle=True, drop_last=True, generator=torch.Generator())
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    images, labels = options.test_part().tensors

    node = decentnode.join(
        model, graph=GRAPH, sharing=options.sharing, steps_per_round=options.steps_per_round,
        optimizer=optimizer.optimizer,
    )  # fmt: skip
    with node:
        accelerator.register_for_checkpointing(node)
        step = int(options.resume_from.rpartition("_")[2] or 0)
        if step:
            accelerator.load_state(str(options.folder / options.resume_from))
        # Accelerate makes a step at the end of an epoch, too.
        epoch, steps_of_epoch = divmod(step, -(-len(loader) // ACCUMULATED))
        rest = accelerator.skip_first_batches(loader, steps_of_epoch * ACCUMULATED)
        goes_on = step < options.steps
        while goes_on:
            rest.set_epoch(epoch)
            for samples, targets in rest:
                with accelerator.accumulate(model):
                    options.fails_at(step + 1)
                    accelerator.backward(nn.functional.cross_entropy(model(samples), targets))
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                if not accelerator.sync_gradients or accelerator.optimizer_step_was_skipped:
                    continue
                step += 1
                goes_on = node.step() and step < options.steps
                if node.round_ended and step % SAVE_EVERY == 0:
                    with node.busy(), torch.no_grad():
                        model.eval()
                        node.log(accuracy=float((model(images).argmax(1) == labels).float().mean()))
                        model.train()
                if step % SAVE_EVERY == 0 or not goes_on:
                    # Parameters are parts of one vector: Accelerate would leave out all but one of them.
                    folder = str(options.folder / f"checkpoint_{step}")
                    accelerator.save_state(folder, safe_serialization=False)
                if not goes_on:
                    break
            rest, epoch = loader, epoch + 1
    options.finish(model, step)


if __name__ == "__main__":
    main()
