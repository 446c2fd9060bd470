"""Runs of Weights & Biases."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from decentnode.core.registry import WRITERS
from decentnode.errors import BadInput
from decentnode.formats.reader import EvaluationRow
from decentnode.results.extra import need
from decentnode.results.run import Run
from decentnode.results.writers.base import Writer, is_whole, scalars

Mode = Literal["online", "offline", "disabled"]


@WRITERS.register("wandb")
@dataclass(kw_only=True)
class WandbWriter(Writer):
    """A run of Weights & Biases, with the run id of decentnode (Biewald, 2020).

    A resumed run continues it. Rounds that it has already are not sent again, even where the run itself
    repeats them. Offline each start writes all rows to a directory of its own: upload the last one
    (`wandb sync`).
    """

    needs = ("wandb", "wandb")

    project: str = "decentnode"
    entity: str | None = None
    """The user or team; null: the user's default."""
    group: str | None = None
    """Runs that are shown together, as those of one study."""
    tags: tuple[str, ...] = ()
    mode: Mode | None = None
    """null: that of WANDB_MODE, which is online without it."""
    per_rank: bool = False
    """Whether each node has curves of its own."""
    _run: Run = field(init=False, repr=False)
    _wandb_run: Any = field(init=False, repr=False)

    def begin(self, run: Run, rows: Sequence[EvaluationRow]) -> None:
        self._run, wandb = run, need("wandb", "wandb")
        # The screen has the launcher's live view.
        quiet = wandb.Settings(console="off", silent=True)
        mode = self.mode or wandb.setup(quiet).settings.mode
        # Otherwise `init` would ask the terminal for a key.
        if mode == "online" and not wandb.login(prompt=False):
            raise BadInput("no key for Weights & Biases here; run: wandb login, or set its mode to offline")
        self._wandb_run = wandb.init(
            project=self.project, entity=self.entity, group=self.group, tags=self.tags, mode=self.mode,
            name=run.name, id=run.run_id, resume="allow", config=run.settings, dir=str(run.directory),
            settings=quiet,
        )  # fmt: skip
        for row in rows:
            self.row(row)

    def row(self, row: EvaluationRow) -> None:
        # The next step: that of a run that it continues is after those that the server has.
        if row.round + 1 < self._wandb_run.step:
            return
        self._wandb_run.log(scalars(row, self._run.metrics, self.per_rank), step=row.round + 1)

    def close(self, summary: Mapping[str, Any]) -> None:
        self._wandb_run.summary.update(_plain(summary))
        # W&B shows a run with another code than 0 as failed.
        self._wandb_run.finish(exit_code=0 if is_whole(summary) else 1)
        # Its service is a process, and none may outlive the run.
        need("wandb", "wandb").teardown()


def _plain(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers and texts of a summary, spreads included; W&B has no columns for lists."""
    kept = {key: value for key, value in summary.items() if isinstance(value, int | float | str)}
    return kept | {f"test/{name}": spread for name, spread in (summary.get("test") or {}).items() if spread}
