"""What the pages show works: Python blocks run, commands and files that they name are there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from strideweave.tools.cli import app
from support.models import Family

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[tuple[str, str]]:
    return [
        (f"{page.name}-{k}", body)
        for page in PAGES
        for k, (kind, body) in enumerate(BLOCK.findall(page.read_text()))
        if kind == language
    ]


class _Tokenizer:
    def __call__(self, text: str, return_tensors: str) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.tensor([[3, 4, 5]]), "attention_mask": torch.ones(1, 3, dtype=torch.int64)}


@pytest.mark.parametrize(("name", "code"), blocks("python"), ids=[name for name, _ in blocks("python")])
def test_python_block_of_a_page_runs(
    name: str,
    code: str,
    mixtral: Family,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {"tokenizer": _Tokenizer()}
    exec(code.replace("path/to/a/mixture-of-experts", str(mixtral.path)), scope)
    assert capsys.readouterr().out


def test_commands_of_the_pages_exist_with_their_options() -> None:
    told = [line for _, body in blocks("console") for line in body.splitlines() if line.startswith("$ strideweave ")]
    assert told
    for line in told:
        _, _, *words = line.partition("#")[0].split()
        command = words[: 2 if words[0] == "bench" else 1]
        shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
        assert shown.exit_code == 0, line
        assert "Example: strideweave" in shown.output
        for option in (w for w in words if w.startswith("--")):
            assert option in shown.output, f"{option} of: {line}"


def test_make_targets_of_the_pages_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    told = {t for page in PAGES for t in re.findall(r"^\$ make ([\w-]+)", page.read_text(), re.MULTILINE)}
    assert {"demo", "test"} <= told
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in told)


def test_readme_opens_with_demo_and_test_and_ci_calls_the_test_command() -> None:
    first = next(body for name, body in blocks("console") if name.startswith("README"))
    assert [line.split("#")[0].strip() for line in first.splitlines()] == ["$ make demo", "$ make test"]
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-1] == "make test"


def test_files_that_the_pages_name_are_there() -> None:
    named = {
        (page.name, name)
        for page in PAGES
        for name in re.findall(
            r"`((?:tests|src|docs|benchmarks|io|carriers|checkpoint|integrations)/[\w./]+\.\w+)`", page.read_text()
        )
    }
    assert named
    missing = [
        (page, name)
        for page, name in named
        if not (ROOT / name).exists() and not (ROOT / "src" / "strideweave" / name).exists()
    ]
    assert not missing
