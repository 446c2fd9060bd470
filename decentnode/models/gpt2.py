"""GPT-2, of any size."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear

from decentnode.core.registry import MODELS
from decentnode.errors import BadInput
from decentnode.models.base import Model, ids_shape
from decentnode.models.blocks.attention import Attention, PreNormBlock, apply_blocks, check_heads
from decentnode.options import Positive, Probability

DEVIATION = 0.02
"""Standard deviation of the weights at the start (Radford et al., 2018, section 4.1)."""
EPSILON = 1e-5


class Gpt2Network(nn.Module):
    """Scores of the next token, for each token of a text."""

    def __init__(
        self, blocks: nn.ModuleList, vocabulary: int, context: int, width: int, drop: float, recompute: bool
    ) -> None:
        """`drop`: the share of each embedding that is dropped; `recompute`: gradient checkpointing."""
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = blocks
        self.norm = nn.LayerNorm(width, EPSILON)
        self.drop = drop
        self.recompute = recompute

    def forward(self, ids: Tensor) -> Tensor:
        """Ids, shape (batch, length), to scores, shape (batch, vocabulary, length)."""
        places = torch.arange(ids.shape[1], device=ids.device)
        x = dropout(self.tokens(ids) + self.positions(places), self.drop, self.training)
        x = apply_blocks(self.blocks, x, recompute=self.recompute)
        # The embedding is the last layer, too.
        return linear(self.norm(x), self.tokens.weight).transpose(1, 2)


@MODELS.register("gpt2", "nano_gpt")
@dataclass
class Gpt2(Model):
    """GPT-2, a decoder with norms before its parts and tied embeddings (Radford et al., 2019, section 2.3).

    124,439,808 parameters (GPT-2 small) for 50,257 tokens and a context of 1,024; Radford et al. say 117
    million, which their later release corrects. It starts as published: normal weights, those before a
    residual sum divided by sqrt(2 layers). As in nanoGPT (Karpathy, 2022), so do the positions.
    """

    layers: Positive = 12
    heads: Positive = 12
    """Must divide `width`."""
    width: Positive = 768
    context: Positive | None = None
    """The longest text in tokens; null: that of the samples."""
    dropout: Probability = 0.1
    """The dropout of embeddings, attention and the result of each part."""
    gradient_checkpointing: bool = False
    """Whether the backward pass computes each block again, which takes time and saves memory."""

    @property
    def uses_compiler(self) -> bool:
        return self.gradient_checkpointing

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        length = ids_shape(shape, "gpt2")
        check_heads(self.width, self.heads, "gpt2")
        context = length if self.context is None else self.context
        if context < length:
            raise BadInput.at(
                "model", f"gpt2: context {context} is shorter than the samples, which have {length} ids"
            )
        blocks = nn.ModuleList(
            PreNormBlock(
                Attention(self.width, self.heads, causal=True, drop=self.dropout),
                4 * self.width,
                nn.GELU(approximate="tanh"),
                epsilon=EPSILON,
                drop=self.dropout,
            )
            for _ in range(self.layers)
        )
        network = Gpt2Network(
            blocks,
            num_classes,
            context,
            width=self.width,
            drop=self.dropout,
            recompute=self.gradient_checkpointing,
        )
        start(network)
        return network


def start(network: Gpt2Network) -> None:
    """Draws the initial weights; biases are zero."""
    for part in network.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=DEVIATION)
        if isinstance(part, nn.Linear):
            nn.init.zeros_(part.bias)
    deviation = DEVIATION / (2 * len(network.blocks)) ** 0.5
    for name, weight in network.named_parameters():
        if name.endswith(("attention.output.weight", "feed_forward.2.weight")):
            nn.init.normal_(weight, std=deviation)
