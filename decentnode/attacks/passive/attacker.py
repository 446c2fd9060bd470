"""Runs an attack over transcripts, in the same way while they grow and afterwards."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from decentnode.attacks.passive.base import PassiveAttack
from decentnode.attacks.passive.scene import Scene
from decentnode.attacks.passive.sight import Reader, Sight
from decentnode.core.registry import name_of
from decentnode.errors import BadInput
from decentnode.formats.transcript import Transcript, TranscriptLine
from decentnode.results.attack_results import AttackResult


class Attacker:
    """One adversary, with everything that it has received so far."""

    def __init__(self, scene: Scene, attack: PassiveAttack, run: Path) -> None:
        self.attack = attack
        self.is_done = False
        self._scene = scene
        self._transcripts = [Transcript(run, rank) for rank in attack.listeners]
        self._reader: Reader | None = None
        self._next = 0
        self.last_sight: Sight | None = None
        """What is known after the last round that was read."""

    def require(self) -> None:
        """Raises BadInput where a rank has not recorded what the attack needs."""
        attack, needs_all = name_of(self.attack), self.attack.needs_all_rounds
        for file in self._transcripts:
            options = f"ranks: [{file.rank}]" + (", every: 1, own: true" if needs_all else "")
            remedy = f"record in the run with adversaries: [{{name: record, {options}}}], on its machine"
            if not file.exists:
                raise BadInput(f"{attack}: rank {file.rank} has recorded nothing here; {remedy}")
            if needs_all:
                file.advance()
                rounds = range(file.complete + 1)
                has_own = file.rank not in self.attack.ranks or all(
                    (kind, round) in file.own_lines for kind in ("trained", "mixed") for round in rounds
                )
                missing = next((round for round in rounds if round not in file.lines), None)
                if missing is not None or not has_own:
                    what = "its own models" if missing is None else f"what arrived in round {missing + 1}"
                    raise BadInput(f"{attack}: rank {file.rank} has not recorded {what}; {remedy}")
        self.attack.require(self._scene)

    def advance(self) -> Iterator[AttackResult]:
        """Attacks after each round that is complete by now, in order."""
        for transcript in self._transcripts:
            transcript.advance()
        complete = min((transcript.complete for transcript in self._transcripts), default=-1)
        for round in range(self._next, complete + 1):
            sight = self._seen(round)
            if sight is not None and self.attack.is_due(round, self._scene.rounds):
                yield from self.attack.attack(self._scene, sight)
        self._next = max(self._next, complete + 1)
        self.is_done = all(transcript.ended for transcript in self._transcripts)

    def _seen(self, round: int) -> Sight | None:
        """Returns the knowledge after a round; None where nothing of it was recorded."""
        received: dict[int, list[tuple[TranscriptLine, Tensor | None]]] = {}
        for transcript in self._transcripts:
            for line in transcript.lines.pop(round, []):
                is_seen = self.attack.sees(line.target, line.source)
                if is_seen and (self.attack.needs_all_rounds or line.source not in self.attack.ranks):
                    received.setdefault(line.target, []).append((line, self._content(transcript, line)))
        if not received:
            return None
        if self._reader is None:
            # Only now: a node writes its key before its first line.
            keys = {file.rank: file.key for file in self._transcripts if file.rank in self.attack.ranks}
            self._reader = Reader(self._scene, self.attack.listeners, keys)
        self.last_sight = sight = self._reader.read(round, received)
        for file in self._transcripts if self.attack.needs_all_rounds else ():
            if file.rank in self.attack.ranks:
                for kind, models in (("trained", sight.trained), ("mixed", sight.mixed)):
                    model = self._scene.own_model(file, kind, round)
                    if model is not None:
                        models[file.rank] = model
        wanted = self.attack.victims
        if wanted:
            for known in (sight.models, sight.starts):
                for victim in known.keys() - set(wanted):
                    del known[victim]
        return sight

    def _content(self, transcript: Transcript, line: TranscriptLine) -> Tensor | None:
        if not self.attack.opens(line.target, line.sealed):
            return None
        content = transcript.content(line)
        return None if content is None else torch.from_numpy(content)
