"""Nodes compute random graphs alone: two that never spoke have the same rounds."""

import pytest

from decentnode.errors import BadInput
from tests.support.product import NODES, graph_cases, graph_section, scheme_section, sections_of, settings_of

ROUNDS = 200
LATER = (199, 3, 100, 101, 42, 198, 0)
"""As of a node that resumes, or whose neighbors are ahead."""
UNCHANGED = ("churn", "flipper", "similarity")
"""Of these rounds most are alike, or come from messages."""
SCHEMES = ("gossip", "fed_avg", "levels", "levels with servers")


def graph_of(case, folder):
    """A new instance, as each process makes it, with the first of the schemes that take the graph."""
    for scheme in SCHEMES:
        try:
            sections = sections_of(scheme_section(scheme), graph_section(case, folder))
            return settings_of(sections).graph.make()
        except BadInput as refused:
            defects = refused.defects
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
    one, other = graph_of(case, tmp_path), graph_of(case, tmp_path)
    rounds = ROUNDS if one.period is None else min(one.period, ROUNDS)
    found = [drawn(one, round) for round in range(rounds)]
    # The second process asks from the last rank to the first, and only then for all.
    assert all(other.targets(rank, 0) == found[0][0][rank][0] for rank in reversed(range(NODES)))
    assert [drawn(other, round) for round in range(rounds)] == found
    third = graph_of(case, tmp_path)
    for round in LATER:
        assert drawn(third, round % rounds) == found[round % rounds]
    if one.period is None and case not in UNCHANGED:
        assert len({str(each) for each in found}) > 1
