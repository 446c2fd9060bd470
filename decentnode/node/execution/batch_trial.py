"""Tries a step of two nodes at once before the start (`training.execution`), on copies and on the CPU."""

import random

import numpy as np

from decentnode.errors import BadInput
from decentnode.models.module_state import changes_itself
from decentnode.node.execution.batches import BatchedExecutor
from decentnode.node.experiment import Experiment
from decentnode.node.factory import NodeFactory

KEY = "training.execution.batches"


def try_batch(experiment: Experiment, rank: int) -> None:
    """Raises BadInput or RunFailed where steps of several nodes cannot be computed together.

    `rank`: a node that trains.
    """
    network, layout = experiment.network, experiment.layout
    in_vector = [entry.name for entry in layout.parameters.entries]
    if changes_itself(network, experiment.samples.two_batches, in_vector):
        why = "training changes more of the network than its parameters, such as running values of batch norm"
        raise BadInput.at(KEY, f"{why}; leave it out, or use another norm, such as norm: group")
    for name, parameter in network.named_parameters():
        if parameter.is_complex():
            raise BadInput.at(KEY, f"'{name}' of the model is complex; leave it out")
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise BadInput.at(KEY, f"'{name}' of the model has a hook of its gradient; leave it out")
    executor, factory = BatchedExecutor(network, layout, nodes=2, most=2), NodeFactory(experiment)
    nodes = [factory.training(rank, executor=executor) for _ in range(2)]
    before = np.random.get_state()[1:3], random.getstate()  # type: ignore[index]
    for submitted in [node.submit(node.begin(0)) for node in nodes]:
        submitted()
    after = np.random.get_state()[1:3], random.getstate()  # type: ignore[index]
    if str(before) != str(after):
        raise BadInput.at(KEY, "a step draws from numpy or random, which have one seed for all; leave it out")
