"""Names that several sources register: decentnode's own, users' and those of packages."""

import pytest

from decentnode.core import registry as registries
from decentnode.core.packages import PluginModule
from decentnode.core.registry import Registry


def named(module: str) -> type:
    return type("Named", (), {"__module__": module})


@pytest.fixture
def registry(monkeypatch) -> Registry:
    """An empty registry, where each module `acme_...` is that of a package."""

    def package_of(cls: type) -> PluginModule | None:
        module = cls.__module__
        return PluginModule(module, module, "1.0") if module.startswith("acme") else None

    monkeypatch.setattr(registries, "package_of", package_of)
    return Registry("graph", "decentnode.core.text")


def test_a_package_takes_no_name_of_this_one_whatever_is_imported_first(registry):
    own, user, acme = named("decentnode.graph"), named("my_graph"), named("acme_a")
    for first, second in ((own, acme), (acme, own), (user, acme), (acme, user)):
        name = f"{first.__module__} before {second.__module__}"
        registry.register(name)(first)
        registry.register(name)(second)
        assert registry.find(name) is (second if first is acme else first)
        assert registry.find(name).registered_name == name
    assert registry.clashes() == {}
    registry.register("ring")(own)
    with pytest.raises(ValueError, match=r"^two graph plug-ins are named 'ring'$"):
        registry.register("ring")(user)


def test_a_name_of_two_packages_is_a_line_with_both(registry):
    registry.register("wheel")(named("acme_a"))
    registry.register("wheel")(named("acme_b"))
    line = "several packages have a graph 'wheel': acme_a 1.0 (acme_a:Named), acme_b 1.0 (acme_b:Named); "
    assert registry.clashes()["wheel"].startswith(line)
