"""Writes docs/conformance.md: what the tiled-carrier specification asks, and the tests that prove it.

python tests/conformance/page.py > docs/conformance.md
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
TESTS = FOLDER.parent
if __name__ == "__main__":
    sys.path.insert(0, str(TESTS))

from conformance.seed_000 import REQUIREMENTS, Requirement  # noqa: E402

HEAD = """# What the tiled carrier is asked, and what proves it

`TiledEvictable` follows a specification of fifteen requirements with thirty-two scenarios. Every requirement has a
test class of its name in `tests/conformance/`, and every scenario a test of its name there. The rules that no scenario
speaks of are told here in our own words, each with its tests. `python tests/conformance/page.py` writes this page from
`tests/conformance/seed_000.py`; a test keeps it true: it is current, and every test that it names exists.
"""


@dataclass(frozen=True, slots=True)
class Proof:
    """One test class: where it is, and its tests."""

    file: str
    name: str
    tests: tuple[str, ...]


def proofs() -> dict[str, Proof]:
    """Every test class of the conformance tests of tiles, by name. Errors: LookupError for two of one name."""
    found: dict[str, Proof] = {}
    for path in sorted(FOLDER.glob("test_tiled_evictable_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
                if node.name in found:
                    raise LookupError(
                        f"two test classes are called {node.name}: in {found[node.name].file} and {path.name}"
                    )
                found[node.name] = Proof(path.name, node.name, tests_in(node.body))
    return found


def tests_in(body: Sequence[ast.stmt]) -> tuple[str, ...]:
    """The names of the test functions of a class or module."""
    return tuple(item.name for item in body if isinstance(item, ast.FunctionDef) and item.name.startswith("test_"))


def all_tests_in(path: Path) -> set[str]:
    """The test functions of a file, and `Class.test` for those of its classes."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    classes = [node for node in body if isinstance(node, ast.ClassDef)]
    return {*tests_in(body), *(f"{cls.name}.{test}" for cls in classes for test in tests_in(cls.body))}


def class_of(requirement: str) -> str:
    """The test class that is named after a requirement."""
    return "Test" + "".join(word[0].upper() + word[1:] for word in re.findall(r"\w+", requirement))


def tests_of(scenario: str, proof: Proof) -> list[str]:
    """The tests that are named after a scenario: its title, and perhaps more words."""
    slug = "_".join(["test", *re.findall(r"\w+", scenario.lower())])
    return [test for test in proof.tests if test == slug or test.startswith(f"{slug}_")]


def exists(test: str, own: Proof, found: dict[str, Proof]) -> bool:
    """Whether a rule's test is there: of the requirement's own class, of another, or of a file elsewhere."""
    file, _, name = test.partition("::")
    if name:
        path = TESTS / file
        return path.exists() and name in all_tests_in(path)
    cls, _, name = test.rpartition(".")
    proof = found.get(cls) if cls else own
    return proof is not None and name in proof.tests


def page() -> str:
    """The page. Errors: LookupError for a requirement without a class, or for a test that is not there."""
    found = proofs()
    lines = [HEAD]
    for requirement in REQUIREMENTS:
        lines.extend(section(requirement, found))
    return "\n".join(lines)


def section(requirement: Requirement, found: dict[str, Proof]) -> Iterator[str]:
    """The part of one requirement."""
    own = found.get(class_of(requirement.title))
    if own is None:
        raise LookupError(f"no test class {class_of(requirement.title)} for the requirement {requirement.title!r}")
    yield f"## {requirement.title}\n"
    yield f"`tests/conformance/{own.file}`, class `{own.name}`\n"
    yield "| asked | proven by |"
    yield "|---|---|"
    for title in requirement.scenarios:
        tests = tests_of(title, own)
        if not tests:
            raise LookupError(f"no test in {own.name} is named after the scenario {title!r}")
        yield row(f"Scenario: {title}", tests)
    for rule, tests in requirement.rules.items():
        for test in tests:
            if not exists(test, own, found):
                raise LookupError(f"no test {test!r}, which the rule {rule!r} of {requirement.title!r} names")
        yield row(rule, tests)
    yield ""


def row(asked: str, tests: Sequence[str]) -> str:
    """One line of a table."""
    return f"| {asked} | {', '.join(f'`{test}`' for test in tests)} |"


if __name__ == "__main__":
    sys.stdout.write(page())
