"""Attention and the blocks of Transformers (Vaswani et al., 2017), shared by text and images."""

from collections.abc import Callable, Iterable

from torch import Tensor, nn
from torch.nn.functional import dropout, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from decentnode.errors import BadInput


class Attention(nn.Module):
    """Attention of several heads (Vaswani et al., 2017, section 3.2), of a sequence to itself or another."""

    def __init__(self, width: int, heads: int, causal: bool = False, drop: float = 0.0) -> None:
        """`causal`: a position sees no later one; `drop`: the share of attention weights that is dropped."""
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.drop = drop
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor, other: Tensor | None = None, keep: Tensor | None = None) -> Tensor:
        """Shape (batch, length, width), as `x`.

        `other`, shape (batch, length of the other, width), is what is attended to, if not `x`; `keep`, bool,
        shape (batch, length of the other), is false for positions that must not be attended to.
        """
        key, value = self.key_value(x if other is None else other).chunk(2, dim=-1)
        mixed = scaled_dot_product_attention(
            self._by_head(self.query(x)),
            self._by_head(key),
            self._by_head(value),
            attn_mask=None if keep is None else keep[:, None, None, :],
            dropout_p=self.drop if self.training else 0.0,
            is_causal=self.causal,
        )
        result: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return result

    def _by_head(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        return x.view(batch, length, self.heads, width // self.heads).transpose(1, 2)


def feed_forward(width: int, hidden: int, activation: nn.Module) -> nn.Sequential:
    """Builds two layers, the same at each position (Vaswani et al., 2017, section 3.3)."""
    return nn.Sequential(nn.Linear(width, hidden), activation, nn.Linear(hidden, width))


class PreNormBlock(nn.Module):
    """Attention and a feed-forward network, each normalized before it (Radford et al., 2019, section 2.3)."""

    def __init__(
        self, attention: Attention, hidden: int, activation: nn.Module, epsilon: float, drop: float
    ) -> None:
        """`drop`: the share of each part's result that is dropped; `epsilon`: of the normalizations."""
        super().__init__()
        width = attention.output.out_features
        self.drop = drop
        self.attention_norm = nn.LayerNorm(width, epsilon)
        self.attention = attention
        self.feed_forward_norm = nn.LayerNorm(width, epsilon)
        self.feed_forward = feed_forward(width, hidden, activation)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (batch, length, width), as `x`."""
        x = x + dropout(self.attention(self.attention_norm(x)), self.drop, self.training)
        return x + dropout(self.feed_forward(self.feed_forward_norm(x)), self.drop, self.training)


def apply_blocks(
    blocks: Iterable[nn.Module], x: Tensor, *others: Tensor | None, recompute: bool = False
) -> Tensor:
    """The blocks, one after the other, each with the same `others`; returns the last one's result.

    `recompute`: gradient checkpointing (Chen et al., 2016): the backward pass computes each block again, with
    the same dropout, and only the inputs of blocks are kept.
    """
    for block in blocks:
        run: Callable[..., Tensor] = block
        if recompute and x.requires_grad:
            x = checkpoint(run, x, *others, use_reentrant=False)
        else:
            x = run(x, *others)
    return x


def check_heads(width: int, heads: int, model: str) -> None:
    """Raises BadInput unless the heads have equal parts of the width."""
    if width % heads:
        raise BadInput.at("model", f"{model}: heads {heads} does not divide width {width}")
