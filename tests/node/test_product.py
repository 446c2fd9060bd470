"""Every scheme on every graph under every time model runs to its end, or is refused before the start."""

import pytest

from tests.support.product import (
    TWINS,
    dataset,
    graph_cases,
    graph_section,
    scheme_cases,
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
@pytest.mark.parametrize(
    "name", [pytest.param(case, marks=[pytest.mark.long] * (case in TWINS)) for case in graph_cases()]
)
def test_no_scheme_hangs_or_loses_the_mean_on(name, tmp_path, samples):
    graph, ran, wrong = graph_section(name, tmp_path), set(), []
    cases = ((scheme, key) for scheme in scheme_cases() for key in time_models(scheme, name))
    for scheme, time_model in cases:
        place = f"{scheme} on {name}, {time_model}"
        try:
            sections = sections_of(scheme_section(scheme), graph, time_model)
            defects = walk(sections, tmp_path / place, samples)
        except Exception as error:  # whatever it is, the others are walked, too
            wrong.append(f"{place}: {error!r}")
            continue
        if not defects:
            ran.add(scheme)
    assert not wrong, "\n".join(wrong)
    assert ran
