"""Nodes compute random graphs alone: two that never spoke have the same rounds, and each seed has others."""

from dataclasses import dataclass, replace

import pytest

from decentnode.config import loader
from decentnode.config.plugin import takes_run_seed
from decentnode.config.yaml_source import Document
from decentnode.core.registry import ATTACKS, GRAPHS
from decentnode.errors import BadInput
from decentnode.graph.families import Ring
from tests.support.product import NODES, graph_cases, graph_section, scheme_section, sections_of, settings_of

ROUNDS = 200
LATER = (199, 3, 100, 101, 42, 198, 0)
"""As of a node that resumes, or whose neighbors are ahead."""
UNCHANGED = ("churn", "flipper", "similarity")
"""Of these rounds most are alike, or come from messages."""
SCHEMES = ("gossip", "fed_avg", "levels", "levels with servers", "none")


def graph_of(case, folder):
    """A new instance, as each process makes it."""
    return loaded(case, folder).graph.make()


def loaded(case, folder, seed=None, options=None):
    """Settings with the graph and the first of the schemes that take it; `options`: more of the graph."""
    for scheme in SCHEMES:
        try:
            sections = sections_of(scheme_section(scheme), graph_section(case, folder) | (options or {}))
            return settings_of(sections | {"seed": seed})
        except BadInput as refused:
            defects = refused.lines
    raise AssertionError("; ".join(defects))


def drawn(graph, round):
    """All that nodes know of a round."""
    ranks = range(NODES)
    weights = [graph.weights(rank, round) for rank in ranks] if graph.has_weights else []
    return [
        (graph.targets(i, round), graph.sources(i, round), graph.trains(i, round)) for i in ranks
    ], weights


@pytest.mark.parametrize("case", graph_cases())
def test_two_processes_agree_on_hundreds_of_rounds(case, tmp_path):
    graph, other = graph_of(case, tmp_path), graph_of(case, tmp_path)
    rounds = ROUNDS if graph.period is None else min(graph.period, ROUNDS)
    rounds_drawn = [drawn(graph, round) for round in range(rounds)]
    # The second process asks from the last rank to the first, and only then for all.
    assert all(other.targets(rank, 0) == rounds_drawn[0][0][rank][0] for rank in reversed(range(NODES)))
    assert [drawn(other, round) for round in range(rounds)] == rounds_drawn
    third = graph_of(case, tmp_path)
    for round in LATER:
        assert drawn(third, round % rounds) == rounds_drawn[round % rounds]
    if graph.period is None and case not in UNCHANGED:
        assert len({str(each) for each in rounds_drawn}) > 1


def drawn_by(case, settings):
    """What the graph of these settings is; of one that needs labels, what it would draw from."""
    graph = settings.graph.make()
    return graph.seed if graph.needs_labels else str([drawn(graph, round) for round in range(30)])


@pytest.mark.parametrize("case", graph_cases())
def test_a_graph_without_a_seed_draws_from_that_of_the_run(case, tmp_path):
    name = case.split()[0]
    if not takes_run_seed("graph", GRAPHS.find(name)) and case not in ("by_rounds", "churn"):
        assert "seed" not in vars(loaded(case, tmp_path).graph.make())
        return
    drawn_first, other, usual = (loaded(case, tmp_path, seed) for seed in (1, 2, None))
    first, second = (drawn_by(case, settings) for settings in (drawn_first, other))
    assert drawn_by(case, usual) == first
    # Each run of a study, and what a run has saved.
    assert drawn_by(case, replace(drawn_first, seed=2)) == second
    again = loader.understand(Document("again.yaml", loader.resolved(replace(drawn_first, seed=2))))
    assert again.graph == other.graph and drawn_by(case, again) == second
    if name == "federated" and case == name:
        return  # all clients, in each round
    assert first != second
    fixed = {"seed": 1}
    if case == "churn":
        fixed = {"graph": graph_section("churn", tmp_path)["graph"] | fixed}
    if case == "by_rounds":
        schedule = graph_section("by_rounds", tmp_path)["schedule"]
        schedule[1][1] |= fixed
        fixed = {"schedule": schedule}
    assert drawn_by(case, loaded(case, tmp_path, 2, fixed)) == first


@dataclass(frozen=True)
class OwnSeed(Ring):
    """A graph for which null is a value of its own."""

    seed: int | None = None


def test_null_of_a_plugin_that_knows_it_and_seeds_of_attacks():
    sections = sections_of({"name": "gossip"}, {"name": f"{__name__}:OwnSeed", "nodes": NODES})
    adversaries = [{"name": "noise", "ranks": [0]}]
    settings = settings_of(sections | {"seed": 3, "adversaries": adversaries})
    assert settings.graph.make().seed is None
    assert (
        settings.adversaries[0].make().seed == 3 and replace(settings, seed=4).adversaries[0].make().seed == 4
    )
    assert all(takes_run_seed("attack", cls) for cls in ATTACKS.classes().values() if hasattr(cls, "seed"))
