"""The vision Transformer."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from decentnode.core.registry import MODELS
from decentnode.errors import BadInput
from decentnode.models.base import Model, image_shape
from decentnode.models.blocks.attention import Attention, PreNormBlock, apply_blocks, check_heads
from decentnode.options import Positive, Probability

DEVIATION = 0.02
EPSILON = 1e-6


class VitNetwork(nn.Module):
    """Scores from the class token, which attends to the patches of an image."""

    def __init__(
        self, patches: nn.Conv2d, count: int, blocks: nn.ModuleList, num_classes: int, drop: float,
        recompute: bool,
    ) -> None:  # fmt: skip
        """`patches` turns each of `count` patches into a vector; `drop`, `recompute`: as in Vit."""
        super().__init__()
        width = patches.out_channels
        self.class_token = nn.Parameter(torch.empty(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, 1 + count, width))
        self.patches = patches
        self.blocks = blocks
        self.norm = nn.LayerNorm(width, EPSILON)
        self.scores = nn.Linear(width, num_classes)
        self.drop = drop
        self.recompute = recompute

    def forward(self, images: Tensor) -> Tensor:
        """Shape (batch, channels, height, width) to (batch, classes)."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(images), -1, -1), patches], dim=1)
        x = dropout(x + self.positions, self.drop, self.training)
        x = apply_blocks(self.blocks, x, recompute=self.recompute)
        scores: Tensor = self.scores(self.norm(x)[:, 0])
        return scores


@MODELS.register("vit")
@dataclass
class Vit(Model):
    """A vision Transformer, by default ViT-S/16 (Dosovitskiy et al., 2021; size S: Touvron et al., 2021).

    22,050,664 parameters on 3x224x224 images of 1,000 classes, as vit_small_patch16_224 of timm, and started
    as there.
    """

    patch: Positive = 16
    """The side of a patch in pixels; must divide the image's sides."""
    layers: Positive = 12
    heads: Positive = 6
    """Must divide `width`."""
    width: Positive = 384
    dropout: Probability = 0.0
    """The dropout of embeddings and results; Dosovitskiy et al. take 0.1 to train on ImageNet alone."""
    gradient_checkpointing: bool = False
    """Whether the backward pass computes each block again, which takes time and saves memory."""

    @property
    def uses_compiler(self) -> bool:
        return self.gradient_checkpointing

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        inputs, height, width = image_shape(shape, "vit", smallest=self.patch)
        check_heads(self.width, self.heads, "vit")
        if height % self.patch or width % self.patch:
            raise BadInput.at(
                "model", f"vit: patch {self.patch} does not divide images of {height} x {width}"
            )
        blocks = nn.ModuleList(
            PreNormBlock(
                Attention(self.width, self.heads),
                4 * self.width,
                nn.GELU(),
                epsilon=EPSILON,
                drop=self.dropout,
            )
            for _ in range(self.layers)
        )
        patches = nn.Conv2d(inputs, self.width, self.patch, self.patch)
        count = (height // self.patch) * (width // self.patch)
        network = VitNetwork(
            patches,
            count,
            blocks,
            num_classes=num_classes,
            drop=self.dropout,
            recompute=self.gradient_checkpointing,
        )
        start(network)
        return network


def start(network: VitNetwork) -> None:
    """Draws the initial weights; biases are zero, and the convolution of patches is as torch has it."""
    nn.init.normal_(network.class_token, std=1e-6)
    nn.init.trunc_normal_(network.positions, std=DEVIATION)
    for part in network.modules():
        if isinstance(part, nn.Linear):
            nn.init.trunc_normal_(part.weight, std=DEVIATION)
            nn.init.zeros_(part.bias)
