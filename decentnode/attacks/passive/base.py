"""The base of passive attacks: which ranks or links a party observes, when, and what it infers."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from decentnode.attacks.base import Adversary
from decentnode.attacks.passive.scene import Scene
from decentnode.attacks.passive.sight import Sight, is_readable
from decentnode.core.registry import name_of
from decentnode.datasets.base import LoadedDataset
from decentnode.errors import BadInput, Defect
from decentnode.graph.base import Graph
from decentnode.options import NonNegative, Probability
from decentnode.results.attack_results import AttackResult
from decentnode.sharing.base import Sharing

Link = tuple[NonNegative, NonNegative]


@dataclass(kw_only=True)
class PassiveAttack(Adversary):
    """A party that looks at payloads: ranks, which know what they receive, or an eavesdropper on links.

    Several ranks are one party and share what they receive. An eavesdropper sees both directions of a link;
    of an encrypted one it sees sizes and times alone. Nodes behave as without it.
    """

    active = False
    needs_samples: ClassVar[bool] = False
    """Whether the party must have samples of its own, or public ones."""
    needs_bytes: ClassVar[bool] = True
    """Whether sizes and times are not enough."""
    needs_all_rounds: ClassVar[bool] = False
    """Whether it solves for all rounds together: then it looks at each round, at all exchanges of it, at what
    its ranks send each other, and at their own models."""

    ranks: tuple[NonNegative, ...] = ()
    """Colluding ranks."""
    links: tuple[Link, ...] = ()
    """Pairs of ranks between which an eavesdropper listens."""
    victims: tuple[NonNegative, ...] = ()
    """Ranks to attack; none: all that the party receives from."""
    every: NonNegative = 0
    """Rounds between attacks; 0: only after the last round."""
    public: Probability = 0.0
    """The share of the test samples that the party has."""
    encrypted: bool = False
    """Whether its links count as encrypted, also where the links of this run are not."""
    online: bool = False
    """Whether it attacks while the nodes run; otherwise `decentnode attack` does it afterwards."""
    seed: NonNegative = 0

    @abstractmethod
    def attack(self, scene: Scene, sight: Sight) -> Iterator[AttackResult]:
        """Returns the results of the attack after a round; called for its rounds in order."""

    # Where it listens.

    def listens_at(self, rank: int) -> bool:
        """Whether the party sees anything that this rank receives."""
        return rank in self.ranks or any(rank in link for link in self.links)

    def sees(self, target: int, source: int) -> bool:
        """Whether it sees what `source` sends to `target`."""
        return target in self.ranks or (source, target) in self.links or (target, source) in self.links

    def opens(self, target: int, is_encrypted: bool) -> bool:
        """Whether it sees the bytes that `target` receives over a link."""
        return target in self.ranks or not (is_encrypted or self.encrypted)

    def is_due(self, round: int, rounds: int) -> bool:
        """Whether it looks at a round."""
        return self.needs_all_rounds or self.gives_results(round, rounds)

    def gives_results(self, round: int, rounds: int) -> bool:
        """Whether it gives its results after a round."""
        return round + 1 == rounds or bool(self.every and (round + 1) % self.every == 0)

    def records(self, round: int, rounds: int, keeps_all: bool) -> bool:
        """Whether it needs what is sent in a round: also in the round before an attack, and in the first."""
        return keeps_all or round == 0 or any(self.is_due(r, rounds) for r in (round, round + 1))

    @property
    def keeps_own_models(self) -> bool:
        """Whether its ranks also record their own models."""
        return self.needs_all_rounds

    @property
    def listeners(self) -> list[int]:
        """The ranks whose transcripts it reads."""
        return sorted({*self.ranks, *(rank for link in self.links for rank in link)})

    @property
    def adversary(self) -> str:
        """The adversary as text."""
        ranks = f"ranks {','.join(map(str, self.ranks))}" if self.ranks else ""
        links = f"links {','.join(f'{a}-{b}' for a, b in self.links)}" if self.links else ""
        return " and ".join(filter(None, [ranks, links]))

    # Checks before the start.

    def defects(self, graph: Graph, sharing: Sharing) -> Iterator[Defect]:
        n = graph.num_nodes
        if not self.ranks and not self.links:
            yield Defect((), "nobody listens; give ranks, or links such as [[0, 1]]")
        for option, ranks in (
            ("ranks", self.ranks),
            ("links", sum(self.links, ())),
            ("victims", self.victims),
        ):
            if outside := [rank for rank in ranks if rank >= n]:
                yield Defect((option,), f"rank {outside[0]} does not exist; the graph has 0..{n - 1}")
                return
        yield from self._defects_of_place(graph)
        if self.needs_samples and not self.ranks and not self.public:
            yield Defect(
                ("public",),
                f"{name_of(self)} needs samples, and an eavesdropper has none; give it a share of the test "
                "samples, such as public: 0.5, or name ranks",
            )
        if self.needs_bytes and self.links and self.encrypted and not self.ranks:
            yield Defect(
                ("encrypted",), f"{name_of(self)} needs bytes, and of encrypted links only sizes are seen"
            )
        if self.needs_bytes and (why := is_readable(sharing, bool(self.ranks))):
            yield Defect((), f"{name_of(self)} {why}")

    def _defects_of_place(self, graph: Graph) -> Iterator[Defect]:
        """Yields ranks and links that the attack names and that do not exist."""
        for a, b in self.links:
            if graph.changes.repeats and b not in graph.partners(a):
                yield Defect(
                    ("links",), f"ranks {a} and {b} never exchange in this graph; name ranks that do"
                )
        if shared := set(self.victims) & set(self.ranks):
            yield Defect(("victims",), f"rank {min(shared)} is the adversary itself; name other ranks")
        neighbors = self.sources_of(graph)
        if neighbors is not None and (others := sorted(set(self.victims) - neighbors - set(self.ranks))):
            near = ", ".join(map(str, sorted(neighbors)[:8])) or "nobody"
            yield Defect(
                ("victims",),
                f"rank {others[0]} is no neighbor of {self.adversary}; these are {near}",
            )

    def sources_of(self, graph: Graph) -> set[int] | None:
        """The ranks from which it may receive; None: that depends on the round."""
        if not graph.changes.repeats:
            return None
        near = {peer for rank in self.ranks for peer in graph.partners(rank)}
        return (near | {rank for link in self.links for rank in link}) - set(self.ranks)

    def require(self, scene: Scene) -> None:
        """Raises BadInput where a run that has ended lacks what the attack needs, beside its transcripts."""

    def check(self, dataset: LoadedDataset, parts: Sequence[Tensor]) -> None:
        """Raises BadInput if the samples of the run do not fit."""
        has_classes = dataset.train.labels.dim() == 1 and dataset.num_classes > 1
        if self.needs_bytes and not has_classes:
            raise BadInput.at("adversaries", f"{name_of(self)} needs samples that have one class each")
        if self.needs_samples and not self.public and not any(len(parts[r]) for r in self.ranks):
            raise BadInput.at(
                "adversaries",
                f"{name_of(self)} needs samples, and {self.adversary} have none; give public: 0.5",
            )
