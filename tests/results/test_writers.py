"""One contract for all writers: each evaluation once, in order, also after a resume that went back."""

import csv
import sys
from dataclasses import dataclass, field
from math import isnan
from types import ModuleType, SimpleNamespace

import msgspec
import pandas
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from decentnode.core.registry import WRITERS
from decentnode.errors import BadInput
from decentnode.formats.metrics import CLASSIFICATION
from decentnode.formats.records import write_atomically
from decentnode.results import Run, extra
from decentnode.results.writers import TensorBoardWriter, WandbWriter
from decentnode.results.writers.base import hyperparameters, scalars
from tests.results.test_study import make_run

ACCURACIES = [(0.5, 0.75), (0.875, 0.9), (0.25, 0.5), (1.0, 0.5)]
MEANS = {10: 0.625, 20: 0.8875, 30: 0.375, 40: 0.75}


@dataclass
class FakeWandb:
    """Exactly the calls that are used, of wandb 0.31; `kept` is what its server has."""

    kept: dict[str, dict[int, dict]] = field(default_factory=dict)
    has_key: bool = True
    open: bool = False
    step: int = 0
    summary: dict = field(default_factory=dict)

    def module(self) -> ModuleType:
        made = ModuleType("wandb")
        settings = SimpleNamespace(mode="online")
        made.Settings = lambda console, silent: SimpleNamespace(console=console, silent=silent)
        made.setup = lambda quiet: SimpleNamespace(settings=settings)
        made.login = lambda prompt: self.has_key
        made.init, made.teardown = self.init, lambda: None
        return made

    def init(self, *, project, entity, group, tags, mode, name, id, resume, config, dir, settings):
        assert (resume, settings.console, settings.silent, config["rounds"]) == ("allow", "off", True, 30)
        self.id, self.open = id, True
        self.step = max(self.kept.setdefault(id, {}), default=-1) + 1
        return self

    def log(self, values: dict, step: int) -> None:
        assert self.open and step >= self.step, "W&B ignores steps that it has"
        self.kept[self.id][step], self.step = values, step + 1

    def finish(self, exit_code: int) -> None:
        self.open, self.exit_code = False, exit_code

    def curve(self) -> dict[int, float]:
        (rows,) = self.kept.values()
        return {step: row["accuracy/mean"] for step, row in rows.items()}


@dataclass
class FakeMlflow:
    """Exactly the calls that are used, of mlflow 3.17."""

    runs: dict[str, SimpleNamespace] = field(default_factory=dict)
    experiments: list[str] = field(default_factory=list)

    def modules(self) -> dict[str, ModuleType]:
        top, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
        top.MlflowClient = lambda tracking_uri: self
        entities.Metric = lambda key, value, timestamp, step: SimpleNamespace(**locals())
        entities.Param = lambda key, value: (key, value)
        return {"mlflow": top, "mlflow.entities": entities}

    def get_experiment_by_name(self, name: str):
        return SimpleNamespace(experiment_id="7") if name in self.experiments else None

    def create_experiment(self, name: str) -> str:
        self.experiments.append(name)
        return "7"

    def create_run(self, experiment_id: str, run_name: str, tags: dict):
        run = SimpleNamespace(tags=tags, metrics=[], params=[], status="RUNNING")
        self.runs[f"id{len(self.runs)}"] = run
        return SimpleNamespace(info=SimpleNamespace(run_id=f"id{len(self.runs) - 1}"))

    def search_runs(self, experiment_ids: list[str], filter_string: str):
        name, wanted = filter_string.removeprefix("tags.").replace("`", "").replace("'", "").split(" = ")
        keys = [key for key, run in self.runs.items() if run.tags.get(name) == wanted]
        return [SimpleNamespace(info=SimpleNamespace(run_id=key)) for key in keys]

    def update_run(self, run_id: str, status: str) -> None:
        self.runs[run_id].status = status

    def log_batch(self, run_id: str, metrics=(), params=()) -> None:
        assert len(metrics) <= 1000 and len(params) <= 100, "MLflow refuses more"
        self.runs[run_id].metrics += metrics
        self.runs[run_id].params += params

    def get_metric_history(self, run_id: str, key: str):
        return [metric for metric in self.runs[run_id].metrics if metric.key == key]

    def set_tag(self, run_id: str, key: str, value: str) -> None:
        self.runs[run_id].tags[key] = value

    def set_terminated(self, run_id: str, status: str) -> None:
        self.runs[run_id].status = status

    def curve(self) -> dict[int, float]:
        (run,) = self.runs.values()
        steps = [metric.step for metric in run.metrics if metric.key == "accuracy/mean"]
        assert len(steps) == len(set(steps)), "a round twice"
        return {metric.step: metric.value for metric in run.metrics if metric.key == "accuracy/mean"}


def table_curve(rows: list[dict]) -> dict[int, float]:
    pairs = [(int(row["round"]), int(row["rank"])) for row in rows]
    assert len(pairs) == len(set(pairs)), "a row twice"
    by_round: dict[int, list[float]] = {}
    for row in rows:
        by_round.setdefault(int(row["round"]), []).append(float(row["accuracy"]))
    return {round: sum(values) / len(values) for round, values in by_round.items()}


def events_curve(folder) -> dict[int, float]:
    events = EventAccumulator(str(folder))
    events.Reload()
    steps = [event.step for event in events.Scalars("accuracy/mean")]
    assert len(steps) == len(set(steps)), "a round twice"
    return {event.step: round(event.value, 6) for event in events.Scalars("accuracy/mean")}


@pytest.fixture
def run(tmp_path, monkeypatch) -> Run:
    path = make_run(tmp_path / "run", ACCURACIES, seed=3)
    described = [msgspec.to_builtins(metric) for metric in CLASSIFICATION]
    write_atomically(path / "run.json", {"schema": 3, "run_id": "00ab", "metrics": described})
    return Run(path)


@pytest.fixture
def fakes(monkeypatch):
    wandb, mlflow = FakeWandb(), FakeMlflow()
    for name, module in {"wandb": wandb.module(), **mlflow.modules()}.items():
        monkeypatch.setitem(sys.modules, name, module)
    return {"wandb": wandb, "mlflow": mlflow}


def curve_of(name: str, run: Run, fakes) -> dict[int, float]:
    """The mean accuracy by round, as the tool reads it, in its order."""
    if name == "csv":
        lines = (run.directory / "evaluations.csv").read_text().splitlines()
        return table_curve(list(csv.DictReader(lines)))
    if name == "parquet":
        return table_curve(pandas.read_parquet(run.directory / "evaluations.parquet").to_dict("records"))
    return events_curve(run.directory / "tensorboard") if name == "tensorboard" else fakes[name].curve()


@pytest.mark.parametrize("name", WRITERS.classes())
def test_each_evaluation_is_there_at_once_and_once_also_after_a_resume(name, run, fakes):
    def read() -> list[tuple[int, float]]:
        return [(round, pytest.approx(mean)) for round, mean in curve_of(name, run, fakes).items()]

    writer = WRITERS.find(name)()
    writer.begin(run, [])
    for done, row in enumerate(run.rows[:3], 1):
        writer.row(row)
        assert read() == [*MEANS.items()][:done]
    # No close: the launcher was killed. The resumed run repeats its third evaluation.
    again = WRITERS.find(name)()
    again.begin(run, run.rows[:2])
    # W&B and MLflow cannot take a row back.
    assert read() == [*MEANS.items()][: 3 if name in fakes else 2]
    for row in run.rows[2:]:
        again.row(row)
    again.close(run.summary)
    assert read() == [*MEANS.items()]
    # A writer that is new at a resume has the earlier rows, too.
    late = WRITERS.find(name)()
    late.begin(run, run.rows)
    late.close(run.summary)
    assert read() == [*MEANS.items()]


def test_a_run_that_was_killed_is_not_shown_as_finished(run, fakes):
    """Its writer gets an empty summary, and has the rows."""
    summaries = {"KILLED": {}, "FAILED": {"finished_nodes": 1, "nodes": 2}, "FINISHED": run.summary}
    for status, summary in summaries.items():
        for name in fakes:
            writer = WRITERS.find(name)()
            writer.begin(run, run.rows)
            writer.close(summary)
            assert [*curve_of(name, run, fakes).items()] == [*MEANS.items()]
        assert [one.status for one in fakes["mlflow"].runs.values()] == [status]
        assert fakes["wandb"].exit_code == (status != "FINISHED")


def test_tables_are_those_of_the_run(run):
    frame = run.evaluations
    for name, read in (("csv", pandas.read_csv), ("parquet", pandas.read_parquet)):
        writer = WRITERS.find(name)()
        writer.begin(run, run.rows)
        writer.close({})
        pandas.testing.assert_frame_equal(read(run.directory / f"evaluations.{name}"), frame)


def test_curves_have_the_means_over_nodes_and_unknown_numbers_are_nan(run):
    values = scalars(run.rows[0], CLASSIFICATION, per_rank=True)
    assert (values["accuracy/min"], values["accuracy/max"]) == (0.5, 0.75)
    assert (values["accuracy/rank_00001"], values["loss/rank_00000"]) == (0.75, 0.5)
    # The loss of rank 1 is not finite.
    assert all(isnan(values[f"loss/{part}"]) for part in ("mean", "min", "max", "rank_00001"))
    assert (values["train_loss"], values["bytes_sent"]) == (0.25, 2000)
    assert values["consensus_distance"] == 0.125 and "accuracy/mean_model" not in values
    row = msgspec.structs.replace(run.rows[0], average_model={"accuracy": 0.8, "loss": None})
    assert scalars(row, CLASSIFICATION)["accuracy/mean_model"] == 0.8
    assert dict(hyperparameters({"a": {"b": 1, "c": {}}, "d": [1]})) == {"a.b": "1", "a.c": "{}", "d": "[1]"}


def test_tensorboard_shows_settings_and_the_time_of_the_run(run):
    writer = TensorBoardWriter()
    writer.begin(run, run.rows)
    writer.close({})
    events = EventAccumulator(str(run.directory / "tensorboard"))
    events.Reload()
    assert b"| sharing.name | gossip |" in events.Tensors("settings")[0].tensor_proto.string_val[0]
    first, second, *_ = events.Scalars("accuracy/mean")
    assert second.wall_time - first.wall_time == pytest.approx(1.0)


def test_without_a_key_wandb_is_one_line_and_no_question(run, fakes):
    fakes["wandb"].has_key = False
    with pytest.raises(BadInput, match="no key for Weights & Biases here; run: wandb login, or set"):
        WandbWriter().begin(run, [])
    WandbWriter(mode="offline").begin(run, [])


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setattr(extra, "find_spec", lambda package: None)
    lacks = {name: cls.lack() for name, cls in WRITERS.classes().items()}
    assert lacks.pop("csv") == ""
    assert lacks.pop("parquet") == "this needs pyarrow; run: pip install 'decentnode[studies]'"
    assert lacks == {
        name: f"this needs {name}; run: pip install 'decentnode[{name}]'"
        for name in ("mlflow", "tensorboard", "wandb")
    }
