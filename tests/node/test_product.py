"""Every scheme on every kind of graph runs to its end under all time models, or is refused before."""

import pytest

from tests.support.product import (
    KINDS,
    MATCHES,
    OF_ALL,
    dataset,
    graph_cases,
    graph_section,
    places,
    scheme_section,
    sections_of,
    time_models,
    walk,
)


@pytest.fixture(scope="module")
def samples():
    """The samples of all runs, read once."""
    return dataset()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [OF_ALL, *KINDS])
def test_no_scheme_hangs_or_loses_the_mean_on(kind, tmp_path, samples):
    ran, wrong = set(), []
    for scheme, name in places(kind):
        for time_model in time_models(scheme, name):
            place = f"{scheme} on {name}, {time_model}"
            sections = sections_of(scheme_section(scheme), graph_section(name, tmp_path), time_model)
            try:
                defects = walk(sections, tmp_path / place, samples)
            except Exception as error:  # whatever it is, the others are walked, too
                wrong.append(f"{place}: {error!r}")
                continue
            if not defects:
                ran.add(name)
    assert not wrong, "\n".join(wrong)
    # A scheme that needs what no graph of this kind has is refused on all of them.
    walked = {name for _, name in places(kind)}
    assert len(ran) >= 0.8 * len(walked) and ran >= walked & {name for _, name in MATCHES}


def test_every_graph_is_of_one_kind():
    assert sorted([OF_ALL, *(name for names in KINDS.values() for name in names)]) == graph_cases()
