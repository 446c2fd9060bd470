"""Gradient inversion: samples that explain a victim's update, with a picture of them beside the originals."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import LBFGS, Adam, Optimizer

from decentnode.attacks.passive.base import PassiveAttack
from decentnode.attacks.passive.labels import last_bias
from decentnode.attacks.passive.measures import psnr, ssim
from decentnode.attacks.passive.png import png
from decentnode.attacks.passive.scene import Scene
from decentnode.attacks.passive.sight import Sight
from decentnode.core.atomic_files import make_folder, write_durably
from decentnode.core.registry import ATTACKS, name_of
from decentnode.core.rng import key
from decentnode.datasets.base import LoadedDataset, Samples
from decentnode.datasets.ragged import dense
from decentnode.errors import BadInput
from decentnode.models.module_copies import copied
from decentnode.options import NonNegativeFloat, Positive, PositiveFloat
from decentnode.results.attack_results import AttackResult
from decentnode.training.evaluation import load_flat
from decentnode.training.minibatches import Shard
from decentnode.training.optim.uncompiled import uncompiled

MOST_SHOWN = 8
ENLARGED = 8
"""Pixels of the picture for one of an image."""
IMAGE = 3
"""Dimensions of an image: channels, height, width."""


@dataclass(kw_only=True)
class GradientInversion(PassiveAttack):
    """Finds inputs whose gradient is the victim's update over its learning rate and steps."""

    knowledge = "the victim's model before and after its local steps, and its settings"
    TRIES: ClassVar[int] = 1

    iterations: Positive = 300
    picture: bool = True
    """Whether originals and reconstructions are drawn, into `inversion/` of the run."""

    def check(self, dataset: LoadedDataset, parts: Sequence[Tensor]) -> None:
        super().check(dataset, parts)
        if len(dataset.shape) != IMAGE or dataset.train.has_ids:
            raise BadInput.at(
                "adversaries", f"{name_of(self)} needs images, not inputs of shape {dataset.shape}"
            )

    def attack(self, scene: Scene, sight: Sight) -> Iterator[AttackResult]:
        for victim, start in sight.starts.items():
            steps = scene.steps_until(victim, sight.round) - scene.steps_until(victim, sight.round - 1)
            if not steps or not len(scene.parts[victim]):
                continue
            batch = trained_on(scene, victim, sight.round)
            rate = float(scene.training.optimizer.options.get("lr", 0.001))
            update = (start - sight.models[victim]) / (rate * steps)
            torch.manual_seed(key(self.seed, "inversion", sight.round, victim))
            pixels = self.reconstructed(scene, start, update, count=len(batch))
            yield self._result(scene, victim, sight.round, batch=batch, pixels=pixels)

    @abstractmethod
    def reconstructed(self, scene: Scene, start: Tensor, update: Tensor, count: int) -> Tensor:
        """Returns `count` normalized inputs whose gradient at `start` is `update`, shape (count, *shape)."""

    def _result(self, scene: Scene, victim: int, round: int, batch: Samples, pixels: Tensor) -> AttackResult:
        originals, images = (
            pixels_of(scene.dataset.train, batch.batch(torch.arange(len(batch))).fields[0]),
            pixels_of(scene.dataset.train, pixels),
        )
        places = paired(images, originals)
        alike = [(ssim(images[i], originals[j]), psnr(images[i], originals[j])) for i, j in enumerate(places)]
        path = f"inversion/{name_of(self)}-{victim:05d}-{round:08d}.png"
        if self.picture:
            make_folder(scene.run / "inversion")
            shown = [images[:MOST_SHOWN], originals[places[:MOST_SHOWN]]]
            write_durably(scene.run / path, [png(drawn(shown[1], shown[0]))])
        mean_ssim, mean_psnr = (float(np.mean(values)) for values in zip(*alike, strict=True))
        return AttackResult(
            attack=name_of(self), adversary=self.adversary, victim=victim, round=round, ssim=mean_ssim,
            psnr=mean_psnr, picture=path if self.picture else None,
        )  # fmt: skip


@ATTACKS.register("dlg", "deep_leakage")
@dataclass(kw_only=True)
class DeepLeakage(GradientInversion):
    """Deep leakage from gradients: min |grad(x, y) - g|^2 by L-BFGS (Zhu et al., NeurIPS 2019, Alg. 1).

    Labels are found with the inputs, as scores. The best of a few starts is taken.
    """

    TRIES = 4

    def reconstructed(self, scene: Scene, start: Tensor, update: Tensor, count: int) -> Tensor:
        network, parameters, wanted = prepared(scene, start, update)
        best, least = torch.zeros(count, *scene.dataset.shape), float("inf")
        for _ in range(self.TRIES):
            x = torch.randn(count, *scene.dataset.shape, requires_grad=True)
            y = torch.randn(count, scene.dataset.num_classes, requires_grad=True)
            optimizer = uncompiled(LBFGS)([x, y], max_iter=20, line_search_fn="strong_wolfe")

            def closure(x: Tensor = x, y: Tensor = y, optimizer: Optimizer = optimizer) -> float:
                optimizer.zero_grad()
                computed = gradients(network, parameters, x, labels=y.softmax(-1))
                loss = sum(((a - b) ** 2).sum() for a, b in zip(computed, wanted, strict=True))
                assert isinstance(loss, Tensor)
                loss.backward()  # type: ignore[no-untyped-call]
                return loss.item()

            loss = float("inf")
            for _ in range(max(1, self.iterations // 20)):
                loss = optimizer.step(closure)
            if loss < least:
                best, least = x.detach(), loss
        return best


@ATTACKS.register("inverting_gradients", "gradient_inversion")
@dataclass(kw_only=True)
class InvertingGradients(GradientInversion):
    """Inputs whose gradient has the direction of the update (Geiping et al., NeurIPS 2020, equation 4).

    min 1 - cos(grad(x, y), g) + tv TV(x) by Adam on signed gradients, with x between black and white. Labels
    come from the update of the last bias: a single sample's class has the negative element (Zhao et al.,
    2020, iDLG).
    """

    iterations: Positive = 1000
    tv: NonNegativeFloat = 1e-4
    lr: PositiveFloat = 0.1

    def reconstructed(self, scene: Scene, start: Tensor, update: Tensor, count: int) -> Tensor:
        network, parameters, wanted = prepared(scene, start, update)
        labels = labels_of(scene, update, count)
        low, high = bounds(scene.dataset.train)
        x = torch.randn(count, *scene.dataset.shape, requires_grad=True)
        optimizer = uncompiled(Adam)([x], lr=self.lr)
        marks = [self.iterations * part // 8 for part in (3, 5, 7)]
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, marks)
        norm = torch.stack([w.square().sum() for w in wanted]).sum().sqrt().clamp(min=1e-12)
        for _ in range(self.iterations):
            optimizer.zero_grad()
            computed = gradients(network, parameters, x, labels=labels)
            product = torch.stack([(a * b).sum() for a, b in zip(computed, wanted, strict=True)]).sum()
            size = torch.stack([a.square().sum() for a in computed]).sum().sqrt().clamp(min=1e-12)
            loss = 1 - product / (size * norm) + self.tv * variation(x)
            (x.grad,) = torch.autograd.grad(loss, x)
            x.grad.sign_()
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                x.copy_(x.clamp(low, high))
        return x.detach()


def prepared(scene: Scene, start: Tensor, update: Tensor) -> tuple[nn.Module, list[Tensor], list[Tensor]]:
    """A network at `start`, its parameters, and what their gradients should be."""
    network = copied(scene.network).train()
    load_flat(network, scene.layout, start.to(scene.layout.dtype))
    tensors, entries = dict(network.named_parameters()), [e for e in scene.layout.entries if not e.is_buffer]
    return network, [tensors[e.name] for e in entries], [e.view(update).float() for e in entries]


def gradients(network: nn.Module, parameters: list[Tensor], x: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """The gradients of the mean cross-entropy, with a graph; labels are probabilities (count, classes)."""
    return torch.autograd.grad(cross_entropy(network(x), labels), parameters, create_graph=True)


def variation(x: Tensor) -> Tensor:
    """The mean absolute difference of neighboring pixels."""
    return x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean()


def labels_of(scene: Scene, update: Tensor, count: int) -> Tensor:
    """The labels inferred from the last bias, one-hot of shape (count, classes); without one class 0."""
    classes, entry = scene.dataset.num_classes, last_bias(scene.layout, scene.dataset.num_classes)
    left = torch.zeros(classes) if entry is None else -entry.view(update).float().clone()
    chosen = []
    for _ in range(count):
        chosen.append(int(left.argmax()))
        # The gradient of the bias is mean p - share, so each sample takes 1 / count.
        left[chosen[-1]] -= 1 / count
    return torch.eye(classes)[chosen]


def trained_on(scene: Scene, victim: int, round: int) -> Samples:
    """The samples of the local steps of a round, each once.

    Of private steps it is not known which these were: one of the shard stands for them.
    """
    if scene.training.privacy is not None:
        return scene.shard_of(victim).subset(torch.arange(min(len(scene.parts[victim]), 1)))
    settings, part = scene.training, scene.parts[victim]
    shard = Shard(scene.dataset.train, part, scene.seed, rank=victim)
    # The labels of these samples are their places in the shard.
    places = torch.arange(len(part))
    numbered = Samples(torch.zeros(len(part), 1), places)
    minibatches = settings.make_minibatches(Shard(numbered, places, scene.seed, rank=victim))
    per_epoch = minibatches.steps_per_epoch(settings.accumulate)
    rows: list[Tensor] = []
    for each in range(round + 1):
        minibatches.begin_round()
        steps = [
            minibatches.several(settings.accumulate) for _ in range(settings.steps(victim, each, per_epoch))
        ]
        rows = [batch.labels for batches in steps for batch in batches]
    return shard.samples.subset(part[torch.unique(torch.cat(rows))])


def bounds(samples: Samples) -> tuple[Tensor, Tensor]:
    """The normalized values of black and white: 0 and the largest value that the samples have."""
    white = float(dense(samples.inputs).max())
    low, high = (torch.tensor(value) - samples.mean for value in (0.0, white))
    return low / samples.std, high / samples.std


def pixels_of(samples: Samples, normalized: Tensor) -> Tensor:
    """Normalized inputs as pixels from 0 to 1."""
    low, high = bounds(samples)
    pixels: Tensor = ((normalized.float() - low) / (high - low)).clamp(0, 1)
    return pixels


def paired(images: Tensor, originals: Tensor) -> list[int]:
    """Returns the nearest original of each image, each original once (greedy)."""
    costs = torch.cdist(images.flatten(1), originals.flatten(1))
    places = [0] * len(images)
    for _ in range(min(costs.shape)):
        row, column = divmod(int(costs.argmin()), costs.shape[1])
        places[row] = column
        costs[row], costs[:, column] = torch.inf, torch.inf
    return places


def drawn(above: Tensor, below: Tensor) -> np.ndarray:
    """Originals above and reconstructions below, (count, channels, height, width) each, as pixels."""
    rows = torch.stack([above, below]).mul(255).round().to(torch.uint8)
    large = rows.repeat_interleave(ENLARGED, -1).repeat_interleave(ENLARGED, -2)
    # (2, count, c, h, w) -> (2 h, count w, c)
    _, count, channels, height, width = large.shape
    grid = large.permute(0, 3, 1, 4, 2).reshape(2 * height, count * width, channels).numpy()
    return grid if channels == 3 else grid[..., 0]
