"""Which files are a plug-in's code, and what is kept of them."""

import hashlib
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from decentnode.config import loader as config
from decentnode.core import registry
from decentnode.errors import BadInput, ConfigError
from decentnode.launcher.recovery.resume import ResumePlan
from decentnode.node import plugin_sources
from decentnode.node.plugin_sources import (
    PluginSources,
    difference,
    files_of,
    git_state,
    named_modules,
)
from tests.corpus.case import BASE

FILES = {
    "phd_top.py": "import phd_lab.nets\nfrom decentnode.sharing.gossip import Gossip\nimport json, torch\n"
    "from missing import nothing\n\n\ndef later():\n    import phd_late\n",
    "phd_late.py": "def broken(:\n",
    "phd_unused.py": "",
    "phd_lab/__init__.py": "",
    "phd_lab/nets.py": "from . import layers\nfrom .deep.blocks import Block\nfrom phd_lab import Name\n",
    "phd_lab/layers.py": "import phd_lab.nets\nfrom ... import beyond\n",
    "phd_lab/deep/blocks.py": "import math\nBlock = 1\n",
    "phd_lab/other.py": "",
    "decentnode/__init__.py": "",
}
"""`phd_lab/deep` has no `__init__.py`."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("phd_")]:
        del sys.modules[name]


def load(module, monkeypatch, folder):
    """As if it were imported, although not everything that it imports is there."""
    spec = importlib.util.find_spec(module)
    monkeypatch.setitem(sys.modules, module, importlib.util.module_from_spec(spec))


def test_the_files_of_a_plugin_are_its_own_and_those_that_it_imports_beside_it(folder, monkeypatch):
    load("phd_top", monkeypatch, folder)
    below = ("__init__.py", "deep/blocks.py", "layers.py", "nets.py")
    wanted = ["phd_late.py", *(f"phd_lab/{name}" for name in below), "phd_top.py"]
    files = files_of("phd_top")
    assert sorted(files) == sorted(wanted)
    assert all(path == folder / name for name, path in files.items())


def test_a_module_of_a_package_is_named_below_the_folder_of_the_package(folder, monkeypatch):
    importlib.import_module("phd_lab")
    load("phd_lab.layers", monkeypatch, folder)
    assert sorted(files_of("phd_lab.layers")) == sorted(
        f"phd_lab/{name}" for name in ("__init__.py", "deep/blocks.py", "layers.py", "nets.py")
    )


def test_what_is_installed_is_not_followed():
    import torch.nn

    assert files_of("torch.nn") == {"torch/nn/__init__.py": Path(torch.nn.__file__)}
    assert files_of("sys") == files_of("nowhere.to.be.found") == {}


def settings_with(folder, monkeypatch):
    (folder / "phd_net.py").write_text(
        "import torch\n\n\nclass Net(torch.nn.Sequential):\n    def __init__(self):\n"
        "        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n\n\n"
        "class Step(torch.optim.SGD):\n    pass\n"
    )
    (folder / "ring.edges").write_text("4\n0 1\n1 2\n2 3\n3 0\n")
    text = BASE.replace("{name: mlp, hidden: [8]}", "phd_net:Net").replace(
        "name: SGD", "name: 'phd_net:Step'"
    )
    (folder / "x.yaml").write_text(text)
    monkeypatch.chdir(folder)
    return config.load("x.yaml")


def test_every_plugin_that_is_named_by_its_module_counts_and_no_other(folder, monkeypatch):
    settings = settings_with(folder, monkeypatch)
    assert list(named_modules(settings)) == ["phd_net", "phd_net"]
    sources, content = PluginSources(settings), (folder / "phd_net.py").read_bytes()
    assert sources.hashes == {"phd_net.py": hashlib.sha256(content).hexdigest()}
    (folder / "phd_net.py").write_text("edited since it was read")
    sources.save(folder / "run")
    copy = sources.version.folder(folder / "run") / "phd_net.py"
    assert copy.read_bytes() == content
    assert PluginSources(config.load("x.yaml", ["model=mlp", "training.optimizer=SGD"])).hashes == {}


def test_differences_are_named_and_few():
    here = {"a.py": "1", "b.py": "2", "same.py": "3"}
    assert difference(here, here) == ""
    assert difference(here, {"a.py": "0", "new\n.py": "2", "same.py": "3"}) == "a.py, b.py, new\\n.py"
    assert difference({}, {f"{i}.py": "" for i in range(9)}) == "0.py, 1.py, 2.py and 6 more"


def test_the_commit_is_that_of_the_files_and_says_whether_they_are_in_it(folder, monkeypatch):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder)]
    files = [folder / "phd_top.py", folder / "phd_lab" / "nets.py"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert git_state(files) == (None, None), "nothing was ever committed"
    subprocess.run([*git, "add", "phd_top.py"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "first"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    assert git_state(files[:1]) == (commit.strip(), False)
    assert git_state(files) == (commit.strip(), True), "one is not in it"
    files[0].write_text("")
    assert git_state(files[:1]) == (commit.strip(), True)
    assert git_state([]) == (None, None)
    monkeypatch.setattr(plugin_sources.subprocess, "run", lambda *_, **__: (_ for _ in ()).throw(OSError()))
    assert git_state(files) == (None, None), "there is no git"


OWN_MODEL = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        return self.linear(x.flatten(1))
"""


CONFIG = """
rounds: 1
graph: {name: ring, nodes: 4}
dataset: digits
model: net_of_a_colleague:Net
training: {optimizer: {name: SGD, lr: 0.1}, steps_per_round: 1}
"""


@pytest.mark.parametrize("name", ["code", "time", "yaml", "decentnode", "json"])
def test_a_file_with_the_name_of_another_module_is_refused_with_both(tmp_path, monkeypatch, name):
    own = tmp_path / f"{name}.py"
    own.write_text(OWN_MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(ConfigError) as refused:
        config.load("quickstart", [f"model={name}:Net"])
    imported = getattr(sys.modules[name], "__file__", "a module of its own")
    assert str(refused.value) == (
        f"command line: model: '{name}:Net': {own} is not what Python imports by that name, but {imported}; "
        "give the file another name"
    )


def test_another_package_is_refused_though_both_begin_with_an_empty_file(tmp_path, monkeypatch):
    for folder in ("installed", "own"):
        package = tmp_path / folder / "package_of_two"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "net.py").write_text(f"{OWN_MODEL}\n# {folder}")
    monkeypatch.chdir(tmp_path / "own")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "installed"), *sys.path])
    with pytest.raises(ConfigError, match=r"own/package_of_two/net.py is not what Python imports by that na"):
        config.load("quickstart", ["model=package_of_two.net:Net"])


def test_the_copy_in_a_run_is_taken_although_the_file_here_was_edited(tmp_path, monkeypatch):
    copy = tmp_path / "run" / "code" / ("ab" * 6)
    copy.mkdir(parents=True)
    (copy / "edited_net.py").write_text(OWN_MODEL)
    (tmp_path / "edited_net.py").write_text(f"{OWN_MODEL}\n# edited")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(registry, "_preferred", [])
    registry.import_from(copy, first=True)
    made = config.load("quickstart", ["model=edited_net:Net"]).model.cls
    assert sys.modules[made.__module__].__file__ == str(copy / "edited_net.py")


def test_a_copy_of_a_plugin_in_the_run_is_named_and_taken_when_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    run, copy = tmp_path / "run", tmp_path / "run" / "code" / ("ab" * 6)
    copy.mkdir(parents=True)
    (copy / "net_of_a_colleague.py").write_text(OWN_MODEL)
    (run / "config.yaml").write_text(CONFIG)
    version = {"round": 0, "digest": "ab" * 32, "files": {"net_of_a_colleague.py": "cd" * 32}}
    (run / "run.json").write_text(json.dumps({"schema": 3, "code": [version]}))
    with pytest.raises(ConfigError) as refused:
        config.load(run / "config.yaml")
    assert str(refused.value).endswith(
        f"No module named 'net_of_a_colleague' beside this run, but {copy} has a copy; resume, repeat and "
        f"attack run that code with --with-its-code, other commands with PYTHONPATH={copy}"
    )
    with pytest.raises(BadInput, match="has no run id"):
        ResumePlan(run, with_its_code=True)
    assert sys.modules.pop("net_of_a_colleague").__file__ == str(copy / "net_of_a_colleague.py")
