"""docs/conformance.md says what the conformance tests prove, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance import page as pages
from conformance.seed_000 import REQUIREMENTS, Requirement

ROOT = Path(__file__).parents[2]


def test_conformance_page_is_what_the_tests_say() -> None:
    assert (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8") == pages.page(), (
        "write it again: python tests/conformance/page.py > docs/conformance.md"
    )


def test_every_requirement_and_scenario_is_there_once() -> None:
    assert len(REQUIREMENTS) == 15
    titles = [title for requirement in REQUIREMENTS for title in requirement.scenarios]
    assert (len(titles), len(set(titles))) == (32, 32)
    assert all(requirement.rules and all(requirement.rules.values()) for requirement in REQUIREMENTS)


@pytest.mark.parametrize(
    ("requirement", "words"),
    [
        (Requirement("Nobody asked this", (), {}), "no test class TestNobodyAskedThis"),
        (Requirement(REQUIREMENTS[0].title, ("A scenario that nobody wrote",), {}), "named after the scenario"),
        (Requirement(REQUIREMENTS[0].title, ("Promote one exp",), {}), "named after the scenario"),
        (Requirement(REQUIREMENTS[0].title, (), {"a rule": ("test_of_nothing",)}), "test_of_nothing"),
        (Requirement(REQUIREMENTS[0].title, (), {"a rule": ("TestFlush.test_of_nothing",)}), "test_of_nothing"),
        (Requirement(REQUIREMENTS[0].title, (), {"a rule": ("TestNoClass.test_x",)}), "TestNoClass"),
        (Requirement(REQUIREMENTS[0].title, (), {"a rule": ("property/test_geometry.py::test_x",)}), "test_x"),
        (Requirement(REQUIREMENTS[0].title, (), {"a rule": ("property/test_no_file.py::test_x",)}), "test_no_file"),
    ],
)
def test_page_that_would_name_no_test_is_refused(requirement: Requirement, words: str) -> None:
    with pytest.raises(LookupError, match=words):
        list(pages.section(requirement, pages.proofs()))
