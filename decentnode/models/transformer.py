"""The Transformer for translation."""

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear

from decentnode.core.registry import MODELS
from decentnode.errors import BadInput
from decentnode.models.base import Model
from decentnode.models.blocks.attention import Attention, apply_blocks, check_heads, feed_forward
from decentnode.options import NonNegative, Positive, Probability

LONGEST_WAVE = 10_000.0


class EncoderBlock(nn.Module):
    """Attention and a feed-forward network, each normalized after its residual sum (section 3.1)."""

    def __init__(self, width: int, heads: int, hidden: int, drop: float) -> None:
        """`drop`: the share of each part's result that is dropped."""
        super().__init__()
        self.drop = drop
        self.attention = Attention(width, heads)
        self.attention_norm = nn.LayerNorm(width)
        self.feed_forward = feed_forward(width, hidden, nn.ReLU())
        self.feed_forward_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, keep: Tensor | None) -> Tensor:
        """Shape (batch, length, width), as `x`; `keep` as in Attention."""
        x = self.attention_norm(x + dropout(self.attention(x, keep=keep), self.drop, self.training))
        result: Tensor = self.feed_forward_norm(x + dropout(self.feed_forward(x), self.drop, self.training))
        return result


class DecoderBlock(nn.Module):
    """An EncoderBlock with causal attention and, after it, attention to the source (section 3.1)."""

    def __init__(self, width: int, heads: int, hidden: int, drop: float) -> None:
        """The arguments are those of EncoderBlock."""
        super().__init__()
        self.drop = drop
        self.attention = Attention(width, heads, causal=True)
        self.attention_norm = nn.LayerNorm(width)
        self.source_attention = Attention(width, heads)
        self.source_norm = nn.LayerNorm(width)
        self.feed_forward = feed_forward(width, hidden, nn.ReLU())
        self.feed_forward_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, source: Tensor, keep: Tensor | None) -> Tensor:
        """Shape (batch, length, width), as `x`; `source` is the encoder's result, `keep` its positions."""
        x = self.attention_norm(x + dropout(self.attention(x), self.drop, self.training))
        seen = self.source_attention(x, source, keep)
        x = self.source_norm(x + dropout(seen, self.drop, self.training))
        result: Tensor = self.feed_forward_norm(x + dropout(self.feed_forward(x), self.drop, self.training))
        return result


class TransformerNetwork(nn.Module):
    """Scores of the next target token, for each target token; one embedding for source, target and scores."""

    def __init__(
        self, encoder: nn.ModuleList, decoder: nn.ModuleList, embedding: nn.Embedding, drop: float,
        padding: int | None, recompute: bool,
    ) -> None:  # fmt: skip
        """`drop`, `padding` and `recompute` are options of Transformer."""
        super().__init__()
        self.embedding = embedding
        self.encoder = encoder
        self.decoder = decoder
        self.drop = drop
        self.padding = padding
        self.recompute = recompute

    def forward(self, source: Tensor, target: Tensor | None = None) -> Tensor:
        """Ids, shapes (batch, source length) and (batch, length), to scores, (batch, vocabulary, length).

        Without `target`, `source` has both, shape (batch, 2, length). `target` starts with the token for the
        begin of a text: its scores at a position are those of the token after it.
        """
        if target is None:
            check_shape(tuple(source.shape[1:]), fields=1)
            source, target = source.unbind(1)
        keep = None if self.padding is None else self._kept(source)
        memory = apply_blocks(self.encoder, self._embedded(source), keep, recompute=self.recompute)
        x = apply_blocks(self.decoder, self._embedded(target), memory, keep, recompute=self.recompute)
        return linear(x, self.embedding.weight).transpose(1, 2)

    def _kept(self, source: Tensor) -> Tensor:
        keep = source.ne(cast(int, self.padding))
        # A text of padding alone would have no mean to take.
        keep[:, 0] = True
        return keep

    def _embedded(self, ids: Tensor) -> Tensor:
        width = self.embedding.embedding_dim
        x = self.embedding(ids) * math.sqrt(width)
        return dropout(x + waves(ids.shape[1], width, x), self.drop, self.training)


def check_shape(shape: tuple[int, ...], fields: int) -> None:
    """Raises BadInput unless samples have source and target; of two fields each has the shape (length,)."""
    if not (len(shape) == 2 and shape[0] == 2) and not (fields == 2 and len(shape) == 1):
        raise BadInput.at(
            "model",
            "transformer takes ids of source and target, in two fields or in shape (2, length); the "
            f"dataset gives {'one field' if fields == 1 else 'samples'} of shape {shape}",
        )


def waves(length: int, width: int, like: Tensor) -> Tensor:
    """The sine and cosine of each position (Vaswani et al., 2017, section 3.5), shape (length, width).

    Sines come first and then cosines, as in the authors' tensor2tensor; dtype and device are those of `like`.
    """
    rates = torch.arange(width // 2, device=like.device) * (-math.log(LONGEST_WAVE) / (width // 2 - 1))
    angles = torch.arange(length, device=like.device)[:, None] * rates.exp()
    return torch.cat([angles.sin(), angles.cos()], dim=1).to(like.dtype)


@MODELS.register("transformer")
@dataclass
class Transformer(Model):
    """An encoder and a decoder for translation, by default size "base" (Vaswani et al., 2017, table 3).

    44,138,496 parameters and 512 for each token of the vocabulary that both languages share: 63,082,496
    with the paper's "about 37,000 tokens". Its 65 million would need some 40,700. The network takes source
    and target ids: two fields, as of dataset `parallel`, or both in samples of shape (2, length).
    """

    layers: Positive = 6
    """Layers of the encoder, and of the decoder."""
    heads: Positive = 8
    """Must divide `width`."""
    width: Positive = 512
    hidden: Positive = 2048
    """The width between the two layers of the feed-forward networks."""
    dropout: Probability = 0.1
    """The dropout of embeddings and of the result of each part (section 5.4)."""
    padding: NonNegative | None = None
    """The id of source tokens that only fill up, 0 in dataset `parallel`; the target's are after all others
    and need none. Null: there is no such id.
    """
    gradient_checkpointing: bool = False
    """Whether the backward pass computes each block again, which takes time and saves memory."""

    @property
    def uses_compiler(self) -> bool:
        return self.gradient_checkpointing

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        check_shape(shape, fields=2)
        check_heads(self.width, self.heads, "transformer")
        if self.width < 4 or self.width % 2:
            raise BadInput.at("model", f"transformer: width must be even, 4 or more, not {self.width}")
        sizes = (self.width, self.heads, self.hidden, self.dropout)
        network = TransformerNetwork(
            nn.ModuleList(EncoderBlock(*sizes) for _ in range(self.layers)),
            nn.ModuleList(DecoderBlock(*sizes) for _ in range(self.layers)),
            nn.Embedding(num_classes, self.width),
            drop=self.dropout,
            padding=self.padding,
            recompute=self.gradient_checkpointing,
        )
        start(network)
        return network


def start(network: TransformerNetwork) -> None:
    """Draws the initial weights as in tensor2tensor (Vaswani et al., 2018): Glorot's, and biases zero."""
    nn.init.normal_(network.embedding.weight, std=network.embedding.embedding_dim**-0.5)
    for part in network.modules():
        if isinstance(part, nn.Linear):
            nn.init.xavier_uniform_(part.weight)
            nn.init.zeros_(part.bias)
