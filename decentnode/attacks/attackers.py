"""Passive attacks on a run: afterwards, or in a process of their own while the nodes run."""

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch

from decentnode.attacks.passive.attacker import Attacker
from decentnode.attacks.passive.base import PassiveAttack
from decentnode.attacks.passive.scene import Scene
from decentnode.core.polling import ready
from decentnode.core.registry import name_of
from decentnode.core.text import how_it_ended
from decentnode.errors import BadInput
from decentnode.launcher.extension import RunExtension
from decentnode.launcher.processes.child_process import ChildProcess
from decentnode.node.experiment import Experiment
from decentnode.results.attack_results import AttackResult, best, read_results, write_results
from decentnode.sharing.base import Sharing
from decentnode.sharing.blocks.buffers import AveragedBuffers

CHECK_INTERVAL = 1.0
"""Seconds between two looks at growing transcripts."""
NICENESS = 19


def scene_of(experiment: Experiment, run: Path) -> Scene:
    """Returns what attacks know of a run, with the truth; raises BadInput where payloads cannot be read."""
    settings, samples, first = experiment.settings, experiment.samples, experiment.schemes.plain()
    if isinstance(first, AveragedBuffers) or not isinstance(first, Sharing):
        raise BadInput.at("adversaries", "passive attacks and training.mix_buffers do not go together")
    if samples.normalizers:
        raise BadInput.at("adversaries", "passive attacks know no standardize: node; use all or none")

    scheme = cast(Callable[[int], Sharing], experiment.schemes.plain)
    return Scene(
        run=run,
        network=experiment.network,
        layout=first.setup.layout,
        training=settings.training,
        dataset=samples.dataset,
        parts=samples.parts,
        assigned=samples.assigned,
        graph=experiment.graph,
        scheme=scheme,
        rounds=settings.rounds,
        seed=settings.seed,
        plans=experiment.privacy,
    )


def passive(experiment: Experiment) -> list[PassiveAttack]:
    """Returns the passive adversaries of a run."""
    made = (plugin.make() for plugin in experiment.settings.adversaries)
    return [adversary for adversary in made if isinstance(adversary, PassiveAttack)]


def attacked(experiment: Experiment, run: Path, attacks: Sequence[PassiveAttack]) -> Iterator[AttackResult]:
    """Yields the results of attacks on the transcripts of a run that has ended; raises BadInput."""
    settings, scene = experiment.settings, scene_of(experiment, run)
    if solving := [attack for attack in attacks if attack.needs_all_rounds]:
        where = (
            "communication.overlap" if settings.communication.overlap
            else "time_model" if settings.time_model.is_asynchronous else ""
        )  # fmt: skip
        if where:
            raise BadInput.at(where, f"{name_of(solving[0])} needs rounds of local steps, then one mix by W")
    attackers = [Attacker(scene, attack, run) for attack in attacks]
    for attacker in attackers:
        attacker.require()
    for attacker in attackers:
        yield from attacker.advance()


class AttackProcess(RunExtension):
    """The process of attacks that run beside the nodes; without any, every method does nothing."""

    def __post_init__(self) -> None:
        """Raises BadInput for a party with ranks on several machines."""
        local = self.experiment.mapping.ranks_of(self.machine)
        online = [attack for attack in passive(self.experiment) if attack.online]
        for attack in online:
            here = {rank in local for rank in attack.listeners}
            if len(here) > 1:
                raise BadInput.at(
                    "adversaries",
                    f"{attack.adversary} are on several machines; attack afterwards (online: false)",
                )
        self._attacks = [attack for attack in online if set(attack.listeners) <= set(local)]
        self._stop = -1
        """An eventfd that asks for the last look."""
        self._child: ChildProcess | None = None

    def start(self) -> None:
        if self._attacks:
            self._stop = os.eventfd(0)
            log = self.run_dir / "logs/attacks.log"
            self._child = ChildProcess("the process of attacks", self._follow, log)

    def nodes_ended(self) -> None:
        if self._child is not None:
            os.eventfd_write(self._stop, 1)

    def check(self) -> None:
        if self._child is not None and self._child.has_ended():
            self._end()

    def is_busy(self, seconds: float = 0.0) -> bool:
        return self._child is not None and not self._child.has_ended(seconds)

    def summary(self) -> dict[str, Any]:
        self.close()
        return {"attacks": best(read_results(self.run_dir)) if self._attacks else None}

    def close(self) -> None:
        if self._child is not None:
            self._end()

    def _end(self) -> None:
        assert self._child is not None
        was_busy, status, log = self.is_busy(), self._child.close(), self._child.log
        os.close(self._stop)
        self._child = None
        if was_busy or status:
            why = "they took too long" if was_busy else how_it_ended(status)
            remedy = f"make them: {shlex.join(['decentnode', 'attack', str(self.run_dir)])}"
            self.log_event("attacks", f"attacks are not complete ({why}); {remedy}; their log: {log}")

    def _follow(self) -> None:
        """Attacks until the nodes have ended."""
        # Below all nodes: an attack may take the processor that they leave.
        os.nice(NICENESS)
        torch.set_num_threads(1)
        scene = scene_of(self.experiment, self.run_dir)
        attackers = [Attacker(scene, attack, self.run_dir) for attack in self._attacks]
        by_attack: list[list[AttackResult]] = [[] for _ in attackers]
        is_last = False
        while not is_last:
            is_last = bool(ready([self._stop], seconds=CHECK_INTERVAL))
            before = sum(map(len, by_attack))
            for results, attacker in zip(by_attack, attackers, strict=True):
                results += attacker.advance()
            if sum(map(len, by_attack)) > before:
                # In the order of `decentnode attack`, so the file is the same.
                write_results(self.run_dir, [result for results in by_attack for result in results])
