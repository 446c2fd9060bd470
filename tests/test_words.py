"""The words of docs/glossary.md: none that it rules out is in an identifier, and a class shares one with what
has its type.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

CONTAINERS = {
    "list", "Sequence", "Iterable", "Iterator", "set", "frozenset", "Optional", "Collection", "ClassVar",
    "type", "deque", "Awaitable", "AsyncIterator",
}  # fmt: skip
ENDINGS = ("ation", "ion", "ing", "er", "or", "ies", "y", "ed", "al")
MAPPINGS = {"dict", "Mapping", "MutableMapping", "defaultdict"}
FOREIGN = {"nn", "np", "threading", "torch", "yaml", "zmq"}
"""Modules of others, whose classes may have the names of ours."""

NAMED_BY_ROLE = {
    "Participant node": "nodes of a run are participants",
    "Participant nodes": "nodes of a run are participants",
    "Payload": "outgoing, incoming, sent: which way it goes",
    "Samples": "train, test, members: which part of a dataset",
    "Interval": "the quantity that it bounds",
    "Factory": "what it makes",
    "Plugin": "the key of the file that names it",
    "Options": "the key of the file that has them",
    "Cell": "rows and lines of cells",
    "Form": "accepts and emits: on which side of a transform",
    "IniEntry": "sections of entries",
    "SharingBase scheme": "a scheme is what the field calls it",
    "SharingBase schemes": "a scheme is what the field calls it",
    "PeerError missing": "by rank, why its payload is missing",
    "Mixing weights": "the key of the file",
    "KeyFolder security": "the key of the file",
    "Graph base": "the key of the file",
    "Level inner": "the key of the file",
    "Level outer": "the key of the file",
    "LevelScheme inner": "the key of the file",
    "LevelScheme outer": "the key of the file",
    "Measure metrics": "the key of the file",
    "View levels": "a view for each level of a hierarchy",
    "_Comment y": "the key of LEAF's files",
    "Topology registry": "the attribute of Decent-DP",
}
"""Classes whose instances have other words, all or those of one name, and what these words are."""


@cache
def trees() -> dict[Path, ast.Module]:
    """The sources; not as a constant, because all tests that fork would copy 160 MB."""
    return {path: ast.parse(path.read_text()) for path in sorted((ROOT / "decentnode").rglob("*.py"))}


@cache
def bases() -> dict[str, set[str]]:
    """What each of our classes derives from, and the unions that a class is a member of."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name] |= {
                    ast.unparse(base).rpartition(".")[2].partition("[")[0] for base in node.bases
                }
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
                for member in ast.walk(node.value):
                    if isinstance(member, ast.Name):
                        found[member.id].add(ast.unparse(node.targets[0]))
    return found


@cache
def ours() -> set[str]:
    """The names of our classes."""
    return {
        node.name for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    }


def stem(word: str) -> str:
    """A word without the endings of its other forms."""
    word = {"axes": "axis", "indices": "index"}.get(word, word)
    if word.endswith(("sses", "uses")):
        word = word.removesuffix("es")
    elif not word.endswith(("ss", "us", "is", "ies")):
        word = word.removesuffix("s")
    for ending in ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word.removesuffix(ending)
            break
    return word.removesuffix("e")


def words(name: str) -> set[str]:
    """The stems of the words of an identifier or a class."""
    split = re.sub(r"([a-z0-9])([A-Z])|([A-Z]+)(?=[A-Z][a-z])", r"\1\3_\2", name)
    return {stem(word.lower()) for word in split.split("_") if word}


def with_bases(name: str) -> set[str]:
    """A class, the unions that it is a member of, and all that it derives from."""
    return {name}.union(*(with_bases(base) for base in bases().get(name, ()) if base != name))


def classes_in(annotation: ast.expr) -> Iterator[str]:
    """The classes that an annotation names: those of a container's elements, all of a union."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        yield from classes_in(ast.parse(annotation.value, mode="eval").body)
    elif isinstance(annotation, ast.Name):
        yield annotation.id
    elif isinstance(annotation, ast.Attribute) and ast.unparse(annotation.value) not in FOREIGN:
        yield annotation.attr
    elif isinstance(annotation, ast.BinOp):
        yield from classes_in(annotation.left)
        yield from classes_in(annotation.right)
    elif isinstance(annotation, ast.Subscript):
        outer = ast.unparse(annotation.value).rpartition(".")[2]
        parameters = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        is_homogeneous = outer == "tuple" and ast.unparse(parameters[-1]) == "..."
        if outer in CONTAINERS or is_homogeneous:
            yield from classes_in(parameters[0])
        elif outer in MAPPINGS:
            yield from classes_in(parameters[-1])
        else:
            yield outer


def typed_identifiers(tree: ast.Module) -> Iterator[tuple[str, ast.expr, int]]:
    """Parameters and attributes, with their annotation or that of the value that they are assigned."""
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS):
            parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            annotations = {p.arg: p.annotation for p in parameters if p.annotation is not None}
            yield from ((name, annotation, node.lineno) for name, annotation in annotations.items())
            for statement in ast.walk(node):
                if isinstance(statement, ast.Assign) and ast.unparse(statement.value) in annotations:
                    for target in statement.targets:
                        if isinstance(target, ast.Attribute):
                            yield target.attr, annotations[ast.unparse(statement.value)], statement.lineno
        elif isinstance(node, ast.ClassDef):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    yield field.target.id, field.annotation, field.lineno
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
            yield node.target.attr, node.annotation, node.lineno
        elif (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Name)
        ):
            for target in node.targets:
                if isinstance(target, ast.Attribute):
                    yield target.attr, node.value.func, node.lineno


def strangers() -> Iterator[tuple[set[str], str]]:
    """Identifiers that share no word with their classes: the exceptions for them, and their places."""
    for path, tree in trees().items():
        for identifier, annotation, line in typed_identifiers(tree):
            classes = {base for name in classes_in(annotation) if name in ours() for base in with_bases(name)}
            if identifier.endswith("__"):
                continue
            if classes and not words(identifier) & {word for name in classes for word in words(name)}:
                named = classes | {f"{name} {identifier.lstrip('_')}" for name in classes}
                yield named & NAMED_BY_ROLE.keys(), f"{path.relative_to(ROOT)}:{line} {identifier}"


def test_an_identifier_shares_a_word_with_its_class():
    assert [place for exceptions, place in strangers() if not exceptions] == []
    assert len(NAMED_BY_ROLE) <= 40


def test_every_exception_is_needed():
    assert set().union(*(exceptions for exceptions, _ in strangers())) == NAMED_BY_ROLE.keys()


# Words that the glossary rules out.

FORMS = {"gave": "give", "given": "give", "came": "come", "coming": "come", "comes": "come", "going": "go"}
OTHERS = {
    "decentnode/parallel/rendezvous.py master": "MASTER_ADDR of torch.distributed, and a key in its store"
}
"""Identifiers with such a word that are others' names, or a format."""


def spelled(name: str) -> str:
    """The words of an identifier or a text in their basic forms, each between two spaces."""
    split = re.sub(r"([a-z0-9])([A-Z])|([A-Z]+)(?=[A-Z][a-z])", r"\1\3 \2", name)
    found = re.findall(r"[a-z]+", split.lower())
    return " " + "".join(f"{FORMS.get(word, word)} " for word in found)


def ruled_out() -> tuple[list[str], list[str]]:
    """The words in backticks of the column `not`, as `spelled`: of every identifier, and of nouns alone."""
    rows = re.findall(r"^\|.*\| ([^|]+) \|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    found = [match for row in rows for match in re.findall(r"`([a-z ]+)`( \(noun\))?", row)]
    return tuple([spelled(word) for word, noun in found if bool(noun) is nouns] for nouns in (False, True))


def identifiers(tree: ast.Module) -> Iterator[tuple[str, int, bool]]:
    """What a module names, where, and whether it is a function."""
    for node in ast.walk(tree):
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield node.name, node.lineno, not isinstance(node, ast.ClassDef)
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno, False
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr, node.lineno, False
        elif isinstance(node, ast.alias | ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
            yield (node.asname if isinstance(node, ast.alias) else node.name) or "", node.lineno, False


def with_a_word_to_avoid(path: Path, tree: ast.Module) -> Iterator[str]:
    always, nouns = ruled_out()
    for name, line, is_function in identifiers(tree):
        of_name = spelled(name)
        if any(word in of_name for word in (always if is_function else always + nouns)):
            yield f"{path.relative_to(ROOT)}:{line} {name}"


def test_no_identifier_has_a_word_that_the_glossary_rules_out():
    found = [place for path, tree in trees().items() for place in with_a_word_to_avoid(path, tree)]
    without_lines = {re.sub(r":\d+", "", place): place for place in found}
    assert [place for name, place in without_lines.items() if name not in OTHERS] == []
    assert without_lines.keys() >= OTHERS.keys()


def test_words_are_found_in_every_kind_of_identifier():
    always, nouns = ruled_out()
    assert {" void ", " give up ", " beside "} <= set(always) and nouns == [" note "]
    code = """
class BellRing: room_beside: int
def tell_all(unread): self._gave_up = master = 1
def note_lost(note): pass
try: import os as parked
except OSError as gone: pass
match x:
    case who: avoided = beside_it = isGoneNow = 1
"""
    found = [place.split()[1] for place in with_a_word_to_avoid(ROOT / "x.py", ast.parse(code))]
    expected = "BellRing room_beside tell_all unread _gave_up master note parked gone who beside_it isGoneNow"
    assert sorted(found) == sorted(expected.split())
