"""What a run does with the network of a node, tried on copies: train, evaluate, record, save and resume.

Defects of a network often appear in its second step, after an evaluation, or when a run is resumed: it keeps
a graph of gradients, or a table from an evaluation, or numbers in an attribute that no checkpoint has.
"""

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from decentnode.config.error_locations import defect_of
from decentnode.datasets.base import Samples
from decentnode.errors import BadInput, DecentnodeError, Defect, is_out_of_memory
from decentnode.models.module_state import equal
from decentnode.models.state_encoding import UnknownKind
from decentnode.node.checkpoint.packed_state import packed, unpacked
from decentnode.node.checkpoint.safetensors_io import BadTensors
from decentnode.node.copy_trial import CopyTrial
from decentnode.node.experiment import Experiment, vector_test
from decentnode.node.factory import NodeFactory, settings_on_cpu
from decentnode.node.recording.model_records import content_of_model
from decentnode.training.evaluation import evaluate
from decentnode.training.tasks.base import Task
from decentnode.training.training import Training

STEPS = 2
"""Steps of each of two rounds: what a first step keeps shows in the second."""
SECOND_BACKWARD = "backward through the graph a second time"
"""A part of torch's error about a graph whose values are freed."""
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
ADVICE = "make it a buffer, or return it from get_extra_state (docs/your_model.md)"
_NO_DATA = "_", "training"
"""How names of attributes begin that belong to torch."""


@dataclass
class ModelTrial:
    """The trial of one experiment, on the CPU."""

    experiment: Experiment
    rank: int
    """A rank that trains."""
    saves: bool
    """Whether checkpoints are certain to be needed."""
    notices: list[str] = field(default_factory=list)
    """Notices for the user, a line each."""
    copy_trial: CopyTrial = field(init=False)

    def run(self) -> None:
        """Raises BadInput, or what a plug-in raises, for the first defect."""
        experiment, settings = self.experiment, self.experiment.settings
        minibatches = settings.training.make_minibatches(experiment.samples.shard(self.rank))
        batch = settings.training.augmented(minibatches.trial(), settings.seed)
        with doing("be trained"):
            self.copy_trial = CopyTrial(experiment.network, self._new(), batch)
        node = self._new()
        if experiment.samples.gradient_sync.one_model:
            self._check_gradients(node)
        trained = {name: p.requires_grad for name, p in node.module.named_parameters()}
        with doing("be trained for two steps"):
            self._train(node, 0)
        self._check_parameters(node.module, trained)
        self._try_smallest()
        tests = self._tests()
        with doing("be evaluated after it was trained"):
            node.prepare_evaluation(0)
            plan = experiment.plan
            scores = evaluate(node.objective, tests, plan.batch_size, metrics=plan.listed)
        if experiment.settings.records.models is not None:
            self._record(node)
        saved = self._saved(node)
        with doing("be trained after it was evaluated"):
            self._train(node, 1)
        # What is drawn from the operating system has no seed.
        if saved is not None and node.private is None:
            self._resume(node, saved)
            self._evaluate_elsewhere(saved, tests, scores)
        # Last: it changes the network for a while.
        self.notices += self.copy_trial.notices(node, 2 * STEPS)

    def _new(self) -> Training:
        """The training of a fresh node."""
        settings = replace(settings_on_cpu(self.experiment.settings), compile=False)
        return NodeFactory(self.experiment).training(self.rank, settings=settings, is_trial=True)

    def _train(self, training: Training, round: int) -> None:
        async def steps() -> None:
            tally = training.begin(round)
            if training.private is not None:
                training.private.begin(STEPS)
            for _ in range(STEPS):
                await training.step(tally)
                self.copy_trial.after_step(training)

        asyncio.run(steps())

    def _check_gradients(self, training: Training) -> None:
        """Checks what a gradient sync needs of each gradient."""
        unused, gradient_sync = training.rehearse_alone().unused, self.experiment.samples.gradient_sync
        if unused and not getattr(gradient_sync, "find_unused_parameters", True):
            raise BadInput.at(
                "training.find_unused_parameters",
                f"the model does not use '{min(unused)}' in its loss; set true, or remove it",
            )

    def _check_parameters(self, module: nn.Module, before: dict[str, bool]) -> None:
        after = {name: p.requires_grad for name, p in module.named_parameters()}
        for name in after.keys() - before.keys():
            raise BadInput.at(
                "model",
                f"the parameter '{name}' appears in the first step, too late to be trained; make it "
                "in the constructor, or use a lazy module of torch",
            )
        changed = [name for name in before if after.get(name) != before[name]]
        if changed:
            raise BadInput.at(
                "model",
                f"a step changes whether '{changed[0]}' is trained, but the parameters that travel "
                "are fixed at the start; set requires_grad in the constructor",
            )

    def _try_smallest(self) -> None:
        """Tries the smallest batch that any node will have."""
        experiment, training = self.experiment, self.experiment.settings.training
        if training.batch_size is None or training.privacy is not None:
            return
        sizes = dict[int, int]()
        for rank in range(experiment.graph.num_nodes):
            shard = experiment.samples.shard(rank)
            if shard.size:
                starts = shard.starts(shard.size, training.batch_size)
                sizes.setdefault(shard.size - starts[-1], rank)
        least = min(sizes)
        shard, node = experiment.samples.shard(sizes[least]), self._new()
        node.module.train()
        batch = training.augmented(shard.samples.batch(shard.indices[:least]), experiment.settings.seed)
        with doing(f"be trained on a batch of {least}, the smallest one of rank {sizes[least]}"):
            node.objective(batch)

    def _tests(self) -> Samples:
        """Returns test samples in a batch of the usual size, and in one as short as the last."""
        tests, size = self.experiment.samples.dataset.test, self.experiment.plan.batch_size
        return tests.subset(torch.arange(min(len(tests), size + len(tests) % size)))

    def _record(self, training: Training) -> None:
        try:
            content_of_model(training.module)
        except UnknownKind as error:
            raise BadInput.at("records.models", f"the model cannot be recorded: {error}") from error

    def _saved(self, training: Training) -> bytes | None:
        """The state of a node as in a checkpoint; None if none can hold it."""
        try:
            return packed({"vector": training.vector.values, "training": training.state_dict()})
        except (UnknownKind, BadTensors) as error:
            self._report(
                Defect.at("checkpoint", f"a node cannot be saved, so no run could be resumed: {error}")
            )
            return None

    def _resumed(self, content: bytes) -> Training:
        node, saved = self._new(), unpacked(content)
        with doing("be restored from a checkpoint"):
            node.vector.values.copy_(saved["vector"])
            node.load_state_dict(saved["training"])
        self._train(node, 1)
        return node

    def _resume(self, training: Training, saved: bytes) -> None:
        resumed = self._resumed(saved)
        if _is_same(training, resumed):
            return
        if not _is_same(resumed, self._resumed(saved)):
            self.notices.append(
                "model: two equal steps gave different models, so equal runs differ: something draws from a "
                "source that no seed sets, as numpy.random.default_rng() does; draw from torch, "
                "numpy.random or random"
            )
            return
        where, is_generator = _differing(training.module, resumed.module)
        kept = f"keeps {where} in a plain attribute" if where else "depends on what is no buffer"
        advice = "draw from torch, numpy.random or random, which are seeded" if is_generator else ADVICE
        name = type(training.module).__name__
        problem = f"{name} {kept}, so a resumed run would be another run"
        self._report(Defect.at("model", problem, advice))

    def _evaluate_elsewhere(self, content: bytes, tests: Samples, scores: dict[str, float]) -> None:
        """Evaluates in a network of its own, as evaluators do."""
        experiment = self.experiment
        in_background = experiment.settings.evaluation.background
        if not in_background and not experiment.execution.workers:
            return
        test, saved = vector_test(experiment), unpacked(content)
        test.load(saved["vector"])
        test.module_state.load_state_dict(saved["training"]["module"])
        self._new().prepare_evaluation(0)
        if not equal(test.run(tests, experiment.plan.batch_size), scores):
            difference = "scores of the model are others in another process, which lacks a plain attribute"
            key = "evaluation.background" if in_background else "training.execution.workers"
            raise BadInput.at(key, f"the {difference}; {ADVICE}")

    def _report(self, defect: Defect) -> None:
        if self.saves:
            raise BadInput(defect)
        self.notices.append(str(defect))


@contextmanager
def doing(activity: str) -> Iterator[None]:
    """Explains in one line what a network cannot do; errors of this package have their own."""
    try:
        yield
    except DecentnodeError:
        raise
    except Exception as error:  # the user's own code may raise anything
        if is_out_of_memory(error):
            raise
        if isinstance(error, AttributeError) and isinstance(error.obj, Task):
            name = type(error.obj).__name__
            raise BadInput.at(
                "task",
                f"{name} has no '{error.name}': parts of a run have an object of it each, so what metrics "
                "sets is in one of them; set it in __post_init__, or read it from the outputs",
            ) from error
        if SECOND_BACKWARD in str(error):
            why = "it keeps tensors with their graph from one step to the next; detach them"
        else:
            defect = defect_of(error)
            why = defect.what if defect.key == ("model",) else str(defect)
        raise BadInput.at("model", f"it cannot {activity}: {why}") from error


def _is_same(training: Training, other_training: Training) -> bool:
    return torch.equal(training.vector.values, other_training.vector.values) and equal(
        training.module_state.state_dict(), other_training.module_state.state_dict()
    )


def _differing(module: nn.Module, other: nn.Module) -> tuple[str, bool]:
    """The first attribute with other data, by its path, and whether it is a generator; empty without one."""
    parts = dict(other.named_modules())
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name.startswith(_NO_DATA) or path not in parts:
                continue
            if not _alike(value, vars(parts[path]).get(name)):
                return f"'{f'{path}.' if path else ''}{name}'", isinstance(value, GENERATORS)
    return "", False


def _alike(value: object, other: object) -> bool:
    """Whether two attributes have the same data, as far as that can be seen."""
    if isinstance(value, np.random.Generator) and isinstance(other, np.random.Generator):
        return str(value.bit_generator.state) == str(other.bit_generator.state)
    if isinstance(value, np.random.RandomState) and isinstance(other, np.random.RandomState):
        return str(value.get_state()) == str(other.get_state())
    if isinstance(value, random.Random) and isinstance(other, random.Random):
        return value.getstate() == other.getstate()
    if isinstance(value, torch.Generator) and isinstance(other, torch.Generator):
        return torch.equal(value.get_state(), other.get_state())
    if isinstance(value, np.ndarray) and isinstance(other, np.ndarray):
        return value.shape == other.shape and value.tobytes() == other.tobytes()
    plain = (Tensor, int, float, str, bytes, list, tuple, dict, type(None))
    if isinstance(value, plain) and isinstance(other, plain):
        try:
            return equal(value, other)
        except (RuntimeError, TypeError, ValueError):  # lists of things that cannot be compared
            return True
    return True
