"""What the user should know of private steps before they begin."""

from decentnode.core.text import counted, readable_bytes
from decentnode.node.experiment import Experiment
from decentnode.node.privacy.plans import doubts_of, kept_bytes, noise_of


def notices_of(experiment: Experiment) -> list[str]:
    """What the user should know of private steps before they begin, a line each."""
    plans = experiment.privacy
    if not plans:
        return []
    reasons = doubts_of(experiment.graph.graph, experiment.samples.dataset)
    lines = [f"training.privacy: no claim of epsilon: {reason}" for reason in reasons]
    noise, key = noise_of(plans), "training.privacy.correlation"
    if "diagonals" in noise:
        kept = readable_bytes(kept_bytes(plans, experiment.network))
        vectors = counted(noise["diagonals"] - 1, "vector of noise", "vectors of noise")
        is_plain = " (independent noise)" if noise["diagonals"] == 1 else ""
        diagonals = counted(noise["diagonals"], "diagonal")
        lines.append(f"{key}: C has {diagonals}{is_plain}; each node keeps {vectors}, {kept} in all")
    if "ratio" in noise:
        is_plain = " (independent noise)" if not noise["ratio"] else ""
        lines.append(f"{key}: noise of edges is {noise['ratio']:.3g} times that of nodes{is_plain}")
    return lines


def notices_of_trial(experiment: Experiment) -> list[str]:
    """What the user should know of a release that a check has drawn and no run counts, a line each."""
    if experiment.samples.released is None:
        return []
    return [
        "training.privacy.pipeline: these lines tell of the samples, and of a release for this check alone, "
        "which no budget counts; nothing of it is written or sent, so keep them where the samples are"
    ]
