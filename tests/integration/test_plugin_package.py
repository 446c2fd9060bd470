"""A package of plug-ins (docs/your_package.md), installed into a folder: found, run, recorded, agreed on."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.integration.spawner import Spawner
from tests.support.pages import ROOT, write_files

AGREED = """
import json, sys
from decentnode.config import loader
settings = loader.load(sys.argv[1])
graph = settings.graph.make()
print(json.dumps([loader.digest(settings, graph), loader.agreed(settings, graph)["packages"]]))
"""
LAZY = """
import sys
from decentnode.config import loader
settings = loader.load(sys.argv[1])
assert loader.agreed(settings, settings.graph.make())["packages"] == {}
assert not {"acme_gossip", "broken_plugins"} & set(sys.modules)
"""
BROKEN = "the plug-in package broken-plugins 0.1 cannot be loaded: import of broken_plugins: KeyError: 'why'"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder of the page's files, and the one where its package is installed."""
    folder = tmp_path_factory.mktemp("acme")
    write_files(folder, "docs/your_package.md")
    target = folder / "installed"
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-index",
        "--no-build-isolation",
        "--no-deps",
    ]
    done = subprocess.run([*command, "--target", target, folder], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder, target


def with_metadata(folder, name, version, modules):
    """Adds what pip leaves of an installed package: its name, and entry points for its modules."""
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    points = "\n".join(f"{module} = {module}" for module in modules)
    (metadata / "entry_points.txt").write_text(f"[decentnode.plugins]\n{points}\n")
    for module, content in modules.items():
        (folder / f"{module}.py").write_text(content)
    return folder


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Runs a command with folders of packages; returns its exit code and output."""

    def run(*words, packages=(), text=None):
        paths = os.pathsep.join(map(str, (ROOT, *packages)))
        code = ["-c", text] if text else ["-m", "decentnode"]
        done = subprocess.run(
            [Spawner.of_this_process().python(), *code, *map(str, words)],
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, timeout=200,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    return run


def test_what_a_package_registers_is_listed_run_recorded_and_agreed_on(installed, command, tmp_path):
    folder, target = installed
    run_dir, config = tmp_path / "run", folder / "wheel.yaml"
    code, output = command("run", config, f"run_dir={run_dir}", "evaluation.figures=false", packages=[target])
    assert code == 0, output
    (version,) = json.loads((run_dir / "run.json").read_text())["code"]
    assert version["packages"] == {"acme-gossip": "1.0"}
    code, listed = command("list", packages=[target])
    assert code == 0
    for line in ("wheel                A ring around rank 0", "lazy_gossip ", "brief ", "hall "):
        assert f"\n  {line}" in listed
    assert "      of the package acme-gossip 1.0" in command("list", "lazy_gossip", packages=[target])[1]
    # Another version on another machine, or in a later start.
    newer = with_metadata(
        tmp_path / "newer", "acme-gossip", "1.1", {"acme_gossip": (target / "acme_gossip.py").read_text()}
    )
    here, there = (json.loads(command(config, packages=[place], text=AGREED)[1]) for place in (target, newer))
    assert here[0] != there[0]
    assert (here[1], there[1]) == ({"acme-gossip": "1.0"}, {"acme-gossip": "1.1"})
    code, output = command("resume", run_dir, "rounds=3", packages=[newer])
    assert code == 2 and "the code is not that of this run: acme-gossip 1.0, acme-gossip 1.1" in output


def test_a_broken_package_is_one_line_and_breaks_no_other_run(installed, command, tmp_path):
    folder, target = installed
    broken = with_metadata(
        tmp_path / "broken", "broken-plugins", "0.1", {"broken_plugins": "raise KeyError('why')"}
    )
    code, listed = command("list", "sharing", packages=[target, broken])
    assert code == 0 and listed.count("broken") == 2 and f"\n{BROKEN}\n" in listed
    assert command("validate", folder / "wheel.yaml", packages=[target, broken])[0] == 0
    code, output = command("validate", folder / "wheel.yaml", "graph=whel", packages=[target, broken])
    assert code == 2 and "graph: unknown graph 'whel'; did you mean 'wheel'?" in output and BROKEN in output
    # What names no plug-in of a package imports none.
    text = (folder / "wheel.yaml").read_text().replace("wheel, nodes: 5", "ring, nodes: 4")
    own = folder / "own.yaml"
    own.write_text(re.sub("sharing: .*", "sharing: gossip", text).replace("hall", "inproc"))
    code, output = command(own, packages=[target, broken], text=LAZY)
    assert code == 0, output


def test_a_name_of_two_packages_is_refused_with_both(installed, command, tmp_path):
    folder, target = installed
    text = (target / "acme_gossip.py").read_text()
    other = with_metadata(tmp_path / "other", "zenith", "2.0", {"zenith_plugins": text})
    line = (
        "several packages have a graph 'wheel': acme-gossip 1.0 (acme_gossip:Wheel), "
        "zenith 2.0 (zenith_plugins:Wheel); name one as module:Class, or remove the others"
    )
    code, output = command("validate", folder / "wheel.yaml", packages=[target, other])
    assert code == 2 and f"wheel.yaml:3 graph.name: {line}" in output
    assert f"\n{line}\n" in command("list", packages=[target, other])[1]
    named = [
        "graph.name=zenith_plugins:Wheel", "sharing.name=acme_gossip:LazyGossip", "communication=inproc",
        "sharing.transforms=[]",
    ]  # fmt: skip
    code, output = command("validate", folder / "wheel.yaml", *named, packages=[target, other])
    assert code == 0, output
