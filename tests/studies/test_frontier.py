"""The privacy frontier of a study: claims, attacks, the front, and its files."""

import csv
import json
from itertools import product

import pytest
import yaml

from decentnode.node.privacy.network_accountant import account
from decentnode.results import Run, Study
from decentnode.results.attack_results import AttackResult, write_results
from decentnode.studies.frontier import show
from decentnode.studies.report.claims import claim_of
from decentnode.studies.report.frontier import Frontier, not_dominated
from decentnode.studies.report.page import page_content
from decentnode.studies.report.tables import main_table, pipeline_table
from tests.results.test_study import make_run, recorded

SCHEMES = ("plain", "private", "leaky")
PRIVATE = {"name": "dp_sgd", "delta": 1e-5, "accountant": "rdp", "planned_rounds": 30, "no_claim": {}}

PIPELINE = [
    {"what": "mean and deviation of inputs", "how": "noise", "epsilon": 0.798},
    {"what": "the vocabulary (set dataset.words: hash)", "how": "ends the claim", "epsilon": None},
]


def change(path, **entries):
    """Adds entries to a JSON or YAML file."""
    content = yaml.safe_load(path.read_text()) | entries
    path.write_text(json.dumps(content))


def attacked(directory, auc, seed):
    """Writes what an adversary found: an earlier round, then a later one per victim and for all together."""
    common = {"adversary": "ranks 0", "attack": "membership"}
    write_results(
        directory,
        [
            AttackResult(**common, victim=1, round=9, auc=0.99, tpr_at_1_percent=0.9),
            AttackResult(**common, victim=1, round=29, auc=0.1, tpr_at_1_percent=0.0),
            AttackResult(**common, victim=None, round=29, auc=auc + seed / 100, tpr_at_1_percent=auc / 10),
            AttackResult(adversary="ranks 0", attack="lira", victim=1, round=29, auc=0.5),
            *(
                AttackResult(
                    adversary="ranks 0", attack="canary_audit", victim=victim, round=29, auc=0.8,
                    epsilon_lower=low,
                )
                for victim, low in ((1, 1.0), (2, 2.0))
            ),
        ],
    )  # fmt: skip


@pytest.fixture
def directory(tmp_path):
    """Three schemes and two seeds: one as good as private and with as many bytes, but easier to attack."""
    folder = tmp_path / "trial"
    for scheme, seed in product(SCHEMES, (0, 1)):
        last = (0.9, 0.8) if scheme == "plain" else (0.6, 0.7)
        run = make_run(
            folder / scheme / f"seed-{seed}", [(0.5, 0.5), last], seed, scheme, 1000,
            entry=recorded(scheme, seed),
        )  # fmt: skip
        attacked(run, {"plain": 0.7, "private": 0.52, "leaky": 0.6}[scheme], seed)
        if scheme == "private":
            spent = {"epsilon": {"0": 2.0 + seed, "1": 1.0}, "pipeline": PIPELINE}
            change(run / "summary.json", privacy=PRIVATE | spent)
    return folder


def test_a_point_has_the_figures_of_its_runs(directory):
    frontier = Frontier(Study(directory))
    points = {point.name: point for point in frontier.points}
    plain, private = points["plain"], points["private"]
    assert (plain.utility.mean, plain.worst_node.mean) == pytest.approx((85.0, 80.0))
    # The last round counts, and the row of all victims together where there is one.
    assert plain.attack == "membership" and plain.auc.mean == pytest.approx(0.705)
    assert plain.tpr.mean == pytest.approx(0.07) and plain.audited.mean == pytest.approx(1.5)
    assert private.epsilon.mean == pytest.approx(2.5) and private.epsilon.half > 0 and not private.no_claim
    assert plain.no_claim == "no noise" and str(plain.epsilon.mean) == "nan"
    assert frontier.front == {"plain", "private"}
    table = frontier.table()
    assert [row[1].text for row in table.rows if row[0].text == "leaky"] == [""]
    assert any("no epsilon, no noise: leaky, plain" in note for note in table.notes)
    assert [[cell.text for cell in row] for row in pipeline_table(Study(directory)).rows] == [
        ["private", "mean and deviation of inputs", "noise", "0.798"],
        ["private", "the vocabulary (set dataset.words: hash)", "ends the claim", "-"],
    ]
    tables = page_content(Study(directory), 60.0)["tables"]
    assert [table["title"] for table in tables][1:] == ["before private steps"]
    report = main_table(Study(directory), 60.0)
    assert report.headings[-1] == "epsilon" and [row[-1].text for row in report.rows].count("-") == 2


def test_the_front_is_what_brute_force_finds():
    rows = [*product((0, 1, 2), repeat=3), (0, 0, 0), (float("nan"), -1, -1)]
    for chosen in (rows, rows[5:20:3], [(1, 5), (2, 4), (2, 6), (3, 3), (0, 9), (1, 5)]):
        worse = {
            i
            for i, row in enumerate(chosen)
            for rival in chosen
            if rival != row and all(a <= b for a, b in zip(rival, row, strict=True))
        }
        want = [i for i, row in enumerate(chosen) if i not in worse and all(x == x for x in row)]
        assert not_dominated(chosen) == want


def test_a_claim_needs_all_of_its_assumptions(tmp_path):
    run = make_run(tmp_path / "a", [(0.5, 0.5)])
    doubt = {"generator: seeded, so anyone with the seed can compute the noise": [0]}
    for private, epsilon, reason in (
        (PRIVATE | {"epsilon": {"0": 2.0}}, 2.0, ""),
        (PRIVATE | {"epsilon": {"0": 2.0}, "no_claim": doubt}, None, "generator: seeded"),
        (PRIVATE | {"epsilon": {}}, None, "no accountant"),
    ):
        change(run / "summary.json", privacy=private)
        claim = claim_of(Run(run))
        assert claim.epsilon == epsilon and claim.reason.startswith(reason)
    for name, reason in (
        ("zip_dl", "noise that cancels"),
        ("secure_aggregation", "hides"),
        ("d2", "no noise"),
    ):
        run = make_run(tmp_path / name, [(0.5, 0.5)], sharing=name)
        assert claim_of(Run(run)).epsilon is None and claim_of(Run(run)).reason.startswith(reason)
    change(run / "config.yaml", sharing={"name": "gossip", "transforms": [{"name": "gaussian_noise"}]})
    assert "seed of the run" in claim_of(Run(run)).reason


def test_muffliato_claims_what_the_network_accountant_finds_unless_it_was_repeated(tmp_path):
    from decentnode.config import loader

    sharing = {"name": "muffliato", "noise": 5.0, "steps": 2}
    run = make_run(tmp_path / "a", [(0.5, 0.5)])
    change(run / "config.yaml", sharing=sharing, rounds=3)
    settings = loader.load("configs/muffliato.yaml", ["sharing.noise=5", "rounds=3", "sharing.steps=2"])
    assert claim_of(Run(run)).epsilon == pytest.approx(max(account(settings).local))
    change(run / "run.json", incarnation=1)
    assert claim_of(Run(run)).epsilon is None
    change(run / "config.yaml", sharing=sharing | {"generator": "seeded"})
    assert "seeded" in claim_of(Run(run)).reason


def test_the_command_writes_a_table_its_numbers_and_a_figure(directory, tmp_path, call):
    code, printed, _ = call("frontier", directory, "--out", tmp_path / "out")
    assert code == 0 and "canary AUC" in printed and "private" in printed
    rows = [*csv.reader((tmp_path / "out" / "frontier.csv").read_text().splitlines())]
    assert rows[0][0] == "variant" and len(rows) == 4 and "0.705" in rows[2][rows[0].index("AUC")]
    drawn = (tmp_path / "out" / "frontier.svg").read_text()
    assert "<svg" in drawn and (tmp_path / "out" / "frontier.md").read_text().startswith("| variant")
    assert len([*show(directory, tmp_path / "again")]) > 5


def test_bad_input_is_one_line(tmp_path, call):
    make_run(tmp_path / "empty" / "a", [(0.5, 0.5)], done=False)
    for options, message in (
        ([], "no run has finished yet, so there is no frontier"),
        (["seeds=3"], "seeds=3: a finished study has no options; name its file"),
    ):
        code, _, line = call("frontier", tmp_path / "empty", *options)
        assert code == 2 and message in line
