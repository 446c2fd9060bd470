"""What a finished run may claim about privacy: an epsilon, or the reason why there is none."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

from decentnode.node.privacy.network_accountant import before_mixing
from decentnode.results import Run, read_object

HIDING = {
    "zip_dl": "noise that cancels has no epsilon",
    "secure_aggregation": "hides single models, but not their sum",
    "cesar": "hides single models, but not their sum",
    "shatter": "hides who sent a chunk, but not the chunk",
}


@dataclass(frozen=True)
class Claim:
    """The largest epsilon of its nodes against all that they send, or why nothing is claimed."""

    epsilon: float | None = None
    reason: str = ""
    unit: str = ""
    """The subject of epsilon, with delta."""


def claim_of(run: Run) -> Claim:
    """Returns what a finished run may claim; raises BadInput for files that decentnode has not written."""
    private = run.summary.get("privacy")
    if private is not None:
        return _of_private_steps(private)
    sharing = run.settings.get("sharing") or {}
    if sharing.get("name") == "muffliato":
        return _of_muffliato(run)
    transforms = [stage.get("name") for stage in sharing.get("transforms") or () if isinstance(stage, dict)]
    if "gaussian_noise" in transforms:
        return Claim(reason="noise from the seed of the run, which peers know")
    return Claim(reason=HIDING.get(str(sharing.get("name")), "no noise"))


def _of_private_steps(private: dict[str, object]) -> Claim:
    doubts, spent = private.get("no_claim") or {}, private.get("epsilon") or {}
    if isinstance(doubts, dict) and doubts:
        return Claim(reason=str(next(iter(doubts))))
    if not isinstance(spent, dict) or not spent:
        return Claim(reason="no accountant")
    adversary = private.get("adversary")
    against = f", against one {adversary}" if adversary else ""
    unit = f"a training sample in all steps, delta {private.get('delta')}{against}"
    return Claim(max(spent.values()), unit=unit)


def _of_muffliato(run: Run) -> Claim:
    sharing = run.settings["sharing"]
    if sharing.get("generator", "secure") != "secure":
        return Claim(reason="generator: seeded, so anyone with the seed can compute the noise")
    identity = read_object(run.directory / "run.json")
    # A resumed or restarted node sends the updates of some rounds twice, with other noise.
    if identity.get("incarnation") or run.summary.get("restarted_nodes"):
        return Claim(reason="rounds were repeated with other noise, and nobody counted them")
    delta, epsilon = before_mixing(float(sharing["noise"]), int(run.settings["rounds"]))
    return Claim(epsilon, unit=f"all local updates of a node, delta {delta:g}")


@dataclass(frozen=True)
class Claims:
    """The claims of all runs of a variant."""

    claims: Sequence[Claim]

    @classmethod
    def of(cls, runs: Sequence[Run]) -> "Claims":
        """Collects the claims of the finished runs of a variant."""
        return cls([claim_of(run) for run in runs])

    @property
    def values(self) -> list[float]:
        """Returns epsilon by run; nan where nothing is claimed."""
        return [nan if claim.epsilon is None else claim.epsilon for claim in self.claims]

    @property
    def reason(self) -> str:
        """Returns the most common reason why there is no epsilon; empty where all runs have one."""
        reasons = Counter(claim.reason for claim in self.claims if claim.epsilon is None)
        return reasons.most_common(1)[0][0] if reasons else ""

    @property
    def unit(self) -> str:
        """Returns the subject of epsilon; empty unless all runs have one."""
        return "" if self.reason else next((claim.unit for claim in self.claims), "")
