"""Callbacks of Lightning and of transformers' Trainer, and loops with them, where they are installed."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import decentnode
from decentnode.errors import BadInput
from decentnode.parallel.framework_callback import FrameworkCallback, single_process
from eval.library.frameworks import FRAMEWORKS, Case
from tests.support.framework_loops import flat, samples_of, small_classifier
from tests.support.rank_threads import in_threads

ROOT = Path(__file__).parents[2]


# What needs no framework.


def test_modules_of_callbacks_import_no_framework():
    modules = ("lightning", "hugging_face", "framework_callback")
    code = (
        f"import sys; {'; '.join(f'import decentnode.parallel.{m}' for m in modules)}; "
        "print({'lightning', 'pytorch_lightning', 'transformers', 'accelerate'} & {*sys.modules})"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=ROOT, check=True)
    assert done.stdout == "set()\n"


def test_a_callback_is_of_the_frameworks_class(monkeypatch, tmp_path):
    (tmp_path / "first_framework.py").write_text(
        "class Hooks:\n    def on_end(self): return 'of the framework'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    class Callback(FrameworkCallback):
        FRAMEWORKS = MappingProxyType({"first_framework": "Hooks", "no_such_framework": "Hooks"})

    assert "first_framework" not in sys.modules
    callback = Callback(graph="ring")
    hooks = importlib.import_module("first_framework").Hooks
    assert isinstance(callback, Callback) and isinstance(callback, hooks)
    assert callback.on_end() == "of the framework"
    assert type(callback).__qualname__ == Callback.__qualname__
    assert callback.node is None
    callback.leave()  # without a node it does nothing

    class Missing(FrameworkCallback):
        FRAMEWORKS = MappingProxyType({"no_such_framework": "Hooks"})

    with pytest.raises(BadInput, match=r"none of no_such_framework is installed"):
        Missing()


def test_a_single_process_sees_no_job_until_the_end_of_the_block(monkeypatch):
    job = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "SLURM_PROCID": "1", "TORCHELASTIC_RUN_ID": "x"}
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RANKING", "kept")  # begins as one of them, and is none

    with pytest.raises(KeyError), single_process():
        assert not job.keys() & os.environ.keys() and os.environ["RANKING"] == "kept"
        raise KeyError
    assert {name: os.environ.get(name) for name in job} == job


# Lightning, with ranks that are threads.

SIZE = 3
SHARING = "gradient_tracking"
"""It changes gradients, which Lightning computes inside of the optimizer's step."""


@pytest.fixture
def lightning():
    return pytest.importorskip("lightning.pytorch")


def module_of(lightning, fused):
    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = small_classifier()

        def training_step(self, batch, index):
            inputs, labels = batch
            return nn.functional.cross_entropy(self.network(inputs), labels)

        def validation_step(self, batch, index):
            self.log("constant", 0.25)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1, fused=fused)

    return Module()


class Seen:
    """What a Trainer of one rank did."""

    def __init__(
        self,
        lightning,
        rank,
        folder,
        epochs=2,
        precision=None,
        resume_from=None,
        sharing=SHARING,
        fused=False,
        **options,
    ):
        from decentnode.parallel.lightning import DecentralizedCallback

        self.logged, self.rounds, self.folder = [], 0, folder / str(rank)
        self.callback = DecentralizedCallback(
            graph="ring", sharing=sharing, steps_per_round=3, rank=rank, size=SIZE, quiet=True,
            run_dir=str(folder / f"run-{epochs}"),
        )  # fmt: skip
        seen = self

        class Watch(lightning.Callback):
            def on_train_start(self, trainer, module):
                node = seen.callback.node
                log = node.log
                node.log = lambda **metrics: (seen.logged.append((node.rounds, metrics)), log(**metrics))

            def on_train_batch_end(self, trainer, *_):
                seen.rounds = seen.callback.node.rounds

        plugins = [precision] if precision else None
        checkpoints = lightning.callbacks.ModelCheckpoint(self.folder, "{epoch}", save_top_k=-1)
        self.trainer = lightning.Trainer(
            max_epochs=epochs, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
            enable_model_summary=False, plugins=plugins,
            callbacks=[self.callback, Watch(), checkpoints], **options,
        )  # fmt: skip
        self.module = module_of(lightning, fused)
        loader = DataLoader(TensorDataset(*samples_of(rank)), 4)
        self.trainer.fit(self.module, loader, loader, ckpt_path=resume_from and self.folder / resume_from)

    @property
    def model(self):
        return flat(self.module.network)


def plain_loop(rank, folder, epochs=2, accumulate=1):
    """The model of the same training in a loop of one's own."""
    model = small_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    node = decentnode.join(
        model, graph="ring", sharing=SHARING, steps_per_round=3, optimizer=optimizer, rank=rank, size=SIZE,
        quiet=True, run_dir=str(folder / "run-plain"),
    )  # fmt: skip
    for _ in range(epochs):
        for index, (inputs, labels) in enumerate(DataLoader(TensorDataset(*samples_of(rank)), 4)):
            (nn.functional.cross_entropy(model(inputs), labels) / accumulate).backward()
            if (index + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
                node.step()
    node.leave()
    return flat(model)


def test_lightning_trains_as_a_plain_loop_and_resumes(lightning, tmp_path):
    options = {"accumulate_grad_batches": 2}  # so an epoch is a round
    whole = in_threads(SIZE, lambda rank: Seen(lightning, rank, tmp_path / "whole", **options))
    models = [seen.model for seen in whole]
    plain = in_threads(SIZE, lambda rank: plain_loop(rank, tmp_path, accumulate=2))
    assert [torch.equal(*pair) for pair in zip(models, plain, strict=True)] == [True] * SIZE
    assert [seen.rounds for seen in whole] == [2] * SIZE
    assert [seen.logged for seen in whole] == [[(1, {"constant": 0.25}), (2, {"constant": 0.25})]] * SIZE
    assert [seen.callback.node for seen in whole] == [None] * SIZE

    in_threads(SIZE, lambda rank: Seen(lightning, rank, tmp_path / "parts", epochs=1, **options))
    resumed = in_threads(
        SIZE, lambda rank: Seen(lightning, rank, tmp_path / "parts", resume_from="epoch=0.ckpt", **options)
    )
    equal = [torch.equal(seen.model, model) for seen, model in zip(resumed, models, strict=True)]
    assert (equal, [seen.rounds for seen in resumed]) == ([True] * SIZE, [2] * SIZE)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_lightnings_scaler_skips_is_none(fused, lightning, tmp_path):
    def train(rank):
        # The gradient is infinite once, and the scale is small then.
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, backoff_factor=2.0**-30)
        precision = lightning.plugins.MixedPrecision("16-mixed", "cpu", scaler)
        # A fused optimizer is called for a step that is skipped, too.
        return Seen(lightning, rank, tmp_path, precision=precision, sharing="gossip", fused=fused)

    seen = in_threads(SIZE, train)
    assert [one.trainer.global_step for one in seen] == [12] * SIZE
    assert [one.rounds for one in seen] == [3] * SIZE


# Trainer.


def test_the_trainers_callback_says_what_is_wrong(tmp_path):
    pytest.importorskip("transformers")
    from decentnode.parallel.hugging_face import FILE, DecentralizedTrainerCallback

    callback = DecentralizedTrainerCallback(graph="ring", rank=0, size=2)
    arguments = SimpleNamespace(output_dir=str(tmp_path), world_size=2)
    model = small_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def begin(step):
        state = SimpleNamespace(global_step=step)
        callback.on_train_begin(arguments, state, None, model=model, optimizer=optimizer)

    with pytest.raises(
        BadInput, match=r"one model on 2 processes; make it in a block of `with single_process"
    ):
        begin(0)
    with pytest.raises(BadInput, match=r"checkpoint-4/decentnode\.pt: no state of a node; .* resume_from"):
        begin(4)
    (tmp_path / "checkpoint-4").mkdir()
    torch.save({"node": {}, "digest": "of other weights"}, tmp_path / "checkpoint-4" / FILE)
    with pytest.raises(BadInput, match=r"checkpoint-4: the Trainer has restored other weights than it saved"):
        begin(4)
    assert callback.node is None


# All of them, with ranks that are processes.


@pytest.mark.long
@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.timeout(1200)
def test_a_loop_that_was_broken_off_resumes(name, tmp_path):
    pytest.importorskip(FRAMEWORKS[name].package)
    case = Case(FRAMEWORKS[name], tmp_path, nodes=2, sharing="gossip")
    assert case.to_its_end("whole") == 0
    assert case.to_its_end("parts", "--fail-at", "60") != 0
    assert "none" in case.models("parts")
    step, code = case.resumed("parts")
    assert 0 < step < 60 and code == 0
    assert case.models("parts") == case.models("whole")
    assert case.accuracy() > 0.2
