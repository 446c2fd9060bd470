"""What the private steps of a node have spent, written down before they are made.

A checkpoint does not have the steps of the rounds after it. Their models were sent all the same, so a resumed
or restarted node must count them, too. The journal survives the death of the process. It is brought to the
disk at the end of the node alone: the kernel's boot id tells whether the machine was restarted before that.
"""

from contextlib import suppress
from pathlib import Path

import msgspec

from decentnode.core.clock import boot
from decentnode.core.line_file import LineFile
from decentnode.errors import BadInput
from decentnode.formats.reader import read_lines
from decentnode.formats.records import AuxiliaryRecords
from decentnode.training.privacy.base import History, PrivateSteps


class JournalLine(msgspec.Struct):
    """A line: all steps up to the end of the round that begins, and the boot of the machine."""

    history: History
    boot: str
    ended: bool = False
    """Whether the node ended here, so that all lines are on the disk."""
    doubts: list[str] = []
    """The reasons why what was spent is no claim."""


class PrivacyJournal(AuxiliaryRecords):
    """The journal of one node, in `privacy/RANK.jsonl` of the run."""

    def __init__(self, run_dir: Path, rank: int) -> None:
        self._path = run_dir / "privacy" / f"{rank:05d}.jsonl"
        self._boot = boot()
        self._file = LineFile(self._path, self._doubt)
        self._steps: PrivateSteps | None = None

    def keep(self, steps: PrivateSteps) -> None:
        """Gives the steps what earlier processes of the node have spent; `spend` is about them."""
        self._steps, last = steps, None
        try:
            last = next(reversed(read_lines(self._path, JournalLine)), None) if self._path.exists() else None
        except (OSError, BadInput):
            steps.doubt("its journal cannot be read")
        if last is not None and not last.ended and last.boot != self._boot:
            steps.doubt("its machine was restarted, so that steps may be missing in the journal")
        # A reason outlives the process that found it.
        for reason in last.doubts if last else []:
            steps.doubt(reason)
        steps.recover(last.history if last else steps.history)

    def spend(self, history: History) -> None:
        """Writes down all steps up to the end of a round, before the first of them; never raises OSError."""
        # Not synced: thousands of nodes in one process would wait for the disk in every round.
        self._append(JournalLine(history, self._boot))

    def close(self) -> str:
        # Only here: the kernel's boot id tells of steps that did not reach the disk before.
        if self._steps is not None:
            self._append(JournalLine(self._steps.history, self._boot, ended=True))
            if problem := self._file.sync() or self._file.close():
                self._doubt(problem)
        return ""

    def _append(self, line: JournalLine) -> None:
        line.doubts = [*self._steps.reasons] if self._steps is not None else []
        # What cannot be made is missed by the file itself.
        with suppress(OSError):
            self._path.parent.mkdir(exist_ok=True)
        self._file.append(msgspec.json.encode(line))

    def _doubt(self, _: str) -> None:
        # The node continues: what it claims changes, not what it computes.
        if self._steps is not None:
            self._steps.doubt("its journal could not be written, which a resumed run would need")
