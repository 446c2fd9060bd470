"""Passive attacks on a run: afterwards, or in a process of their own while the nodes run."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from decentnode.attacks.passive.attacker import Attacker
from decentnode.attacks.passive.base import PassiveAttack
from decentnode.attacks.passive.scene import Scene
from decentnode.errors import BadInput
from decentnode.node.experiment import Experiment
from decentnode.results.attack_results import AttackResult
from decentnode.sharing.base import Sharing
from decentnode.sharing.blocks.buffers import BuffersBeside


def scene_of(experiment: Experiment, run: Path) -> Scene:
    """What attacks know of a run, with the truth; raises BadInput where payloads cannot be read."""
    settings, first = experiment.settings, experiment.sharing()
    if isinstance(first, BuffersBeside) or not isinstance(first, Sharing):
        raise BadInput("adversaries: passive attacks and training.mix_buffers do not go together")

    def scheme(rank: int) -> Sharing:
        made = experiment.sharing(rank)
        assert isinstance(made, Sharing)
        return made

    return Scene(
        run, experiment.network, first.layout, settings.training, experiment.dataset, experiment.parts,
        experiment.samples.assigned, experiment.graph, scheme, settings.rounds, settings.seed,
    )  # fmt: skip


def passive(experiment: Experiment) -> list[PassiveAttack]:
    """The passive adversaries of a run."""
    made = (one.make() for one in experiment.settings.adversaries)
    return [one for one in made if isinstance(one, PassiveAttack)]


def attacked(experiment: Experiment, run: Path, attacks: Sequence[PassiveAttack]) -> Iterator[AttackResult]:
    """The results of attacks on the transcripts of a run that has ended; raises BadInput."""
    scene = scene_of(experiment, run)
    attackers = [Attacker(scene, attack, run) for attack in attacks]
    for attacker in attackers:
        attacker.require()
    for attacker in attackers:
        yield from attacker.advance()
