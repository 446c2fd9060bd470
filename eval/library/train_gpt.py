"""A training script as anybody has one: a small GPT on the characters of these docs, with `decentnode.join`.

    decentnode launch --nodes 4 eval/library/train_gpt.py --steps 300
    torchrun --nproc-per-node 4 eval/library/train_gpt.py --steps 300 --save runs/gpt

The lines of decentnode are those with `node`. Each rank trains on a part of the text of its own; without them
it would train alone. `--save FOLDER` saves each rank at the end, and continues from there at the next start.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import decentnode

ROOT = Path(__file__).resolve().parents[2]


class Block(nn.Module):
    """Causal attention and a perceptron (Radford et al., 2019)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*split, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """Logits of the next character."""

    def __init__(self, characters: int, length: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(characters, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--sharing", default="choco")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    text = "".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
    letters = sorted(set(text))
    place = {letter: index for index, letter in enumerate(letters)}
    ids = torch.tensor([place[letter] for letter in text], device=options.device)
    held_out, ids = ids[:20_000], ids[20_000:]

    torch.manual_seed(1)
    length, size = 64, 16
    model = Gpt(len(letters), length, width=64, layers=2, heads=4).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    node = decentnode.join(
        model, optimizer=optimizer, graph="ring", sharing=options.sharing, steps_per_round=10,
        transforms=[{"name": "top_k", "fraction": 0.1}] if options.sharing == "choco" else [],
    )  # fmt: skip
    saved = options.save / f"{node.rank}.pt" if options.save else None
    first = 0
    if saved is not None and saved.exists():
        state = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        node.load_state_dict(state["node"])
        first = state["step"]
    own = ids.chunk(node.size)[node.rank]

    @torch.no_grad()
    def evaluate() -> float:
        rows = held_out[: len(held_out) // (length + 1) * (length + 1)].view(-1, length + 1)[:64]
        return float(F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()))

    for step in range(first, first + options.steps):
        random = node.generator("batch", step)
        starts = torch.randint(len(own) - length - 1, (size,), generator=random)
        rows = torch.stack([own[start : start + length + 1] for start in starts])
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not node.step(loss):
            break
        if node.round_ended and node.rounds % 10 == 0:
            node.log(loss=evaluate())
    if saved is not None:
        saved.parent.mkdir(parents=True, exist_ok=True)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "node": node.state_dict()}
        torch.save(state | {"step": first + options.steps}, saved)
    node.leave()


if __name__ == "__main__":
    main()
