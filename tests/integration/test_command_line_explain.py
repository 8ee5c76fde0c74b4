"""`strideweave explain` as a user calls it: text, JSON, a page, a table, and what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from strideweave.spyre import config
from strideweave.tools.cli import app
from strideweave.tools.sweep import sweep

FILE = """
import torch
from strideweave.inductor import spyre_hint

def feed(x, w):
    return torch.relu(x @ w)

def total(x):
    return float(x.sum().item())

def three(x, y, z, scale=2):
    return x + y * z * scale

number = 3
"""


@pytest.fixture(autouse=True)
def compiled_anew() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.py"
    path.write_text(FILE)
    return str(path)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["explain", *arguments], env={"COLUMNS": "100", "NO_COLOR": "1"})


def shown(*arguments: str) -> Any:
    done = call(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_text_names_every_operation_with_its_windows(model: str) -> None:
    done = call(f"{model}:feed", "--input", "8x64", "--input", "64x32", "--cores", "2")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "2 operations; one core's window is at most 256 MiB, 2 cores"
    assert [line.split(" over ")[0] for line in lines if not line.startswith(" ")][1:] == [
        "buf0: batchmatmul",
        "buf1: relu",
    ]
    assert "    reads  arg0_1 float32 [2, 8, 32] (whole): 2048 B -> 1024 B" in lines


def test_json_is_the_report_as_plain_data(model: str) -> None:
    document = shown(
        f"{model}:feed", "--input", "8x64:float16", "--input", "64x512:float16", "--span", "32KiB", "--rule", "window"
    )
    assert document["limit_nbytes"] == 32768
    assert document["cores"] == config.sencores
    operations = {row["op"]: row for row in document["operations"]}
    plan = operations["batchmatmul"]["spans"]["plan"]
    assert plan["levels"] == [{"selected_host_dim": 1, "split_count": 2, "is_reduction": False, "tile_extent": None}]
    assert operations["batchmatmul"]["loops"] == [2]
    assert operations["batchmatmul"]["spans"]["candidates"]
    windows = [o["window_nbytes"] for row in document["operations"] for o in row["operands"]]
    assert max(windows) <= 32768


def test_switches_last_no_longer_than_the_command(model: str) -> None:
    before = config.save_config()
    shown(f"{model}:feed", "--input", "8x64", "--input", "64x32", "--cores", "2", "--span", "1MiB", "--rule", "seed")
    assert config.save_config() == before


def test_shapes_larger_than_memory_are_planned_and_not_made(model: str) -> None:
    inputs = ("--input", "1000000x65536:float16") * 3
    document = shown(f"{model}:three", *inputs, "--plan-only", "--rule", "window")
    assert all(row["loops"] for row in document["operations"])
    (whole,) = {o["window_whole_nbytes"] for o in document["operations"][0]["operands"] if not o["is_scratch"]}
    assert whole == 1000000 * 65536 * 2
    windows = [o["window_nbytes"] for row in document["operations"] for o in row["operands"]]
    assert max(windows) <= 2**28


def test_page_is_written_with_utf8_and_named_by_its_function(model: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = call(f"{model}:feed", "--input", "8x64", "--input", "64x32", "--plan-only", "--html", str(page))
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == f"wrote {page}: 2 operations"
    text = page.read_bytes().decode("utf-8")
    assert "<title>model.py:feed on the card</title>" in text
    assert "batchmatmul" in text
    document = shown(f"{model}:feed", "--input", "8x64", "--input", "64x32", "--plan-only", "--html", str(page))
    assert len(document["operations"]) == 2


def test_sweep_is_a_table_of_shapes_and_dtypes() -> None:
    done = call("--sweep", "add", "--shapes", "87616x4096,98000x4096:float32", "--cores", "1")
    assert done.exit_code == 0, done.output
    first, headings, *rows = done.stdout.splitlines()
    assert first == "add, windows of at most 256 MiB, 1 core"
    assert headings.split("  ")[0] == "shape"
    cells = [[cell.strip() for cell in row.split("  ") if cell.strip()] for row in rows]
    # 87616 x 4096 x 2 B = 684.5 MiB, by 4: 171.125; 98000 x 4096 x 4 B = 1531.25 MiB, by 8: 191.4.
    assert cells == [
        ["87616x4096", "float16", "64x87616x64", "684.5 MiB", "dim 1 by 4", "4", "171.1 MiB"],
        ["98000x4096", "float32", "128x98000x32", "1531 MiB", "dim 1 by 8", "8", "191.4 MiB"],
    ]
    markdown = call("--sweep", "add", "--shapes", "87616x4096,98000x4096:float32", "--cores", "1", "--markdown")
    table = [line for line in markdown.stdout.splitlines() if line.startswith("|")]
    assert [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]] == cells


@pytest.mark.parametrize(("rule", "levels", "tiles"), [("seed", [(0, 10)], 10), ("window", [(0, 10), (1, 4)], 40)])
def test_rules_differ_where_a_whole_result_overflows(rule: str, levels: list[tuple[int, int]], tiles: int) -> None:
    (case,) = shown("--sweep", "sum:0", "--shapes", "2x20x16x64", "--span", "8KiB", "--rule", rule)["cases"]
    (planned,) = case["planned"]
    assert [(level["selected_host_dim"], level["split_count"]) for level in planned["levels"]] == levels
    assert case["tiles"] == tiles
    assert case["window_nbytes"] <= 8192


def test_sweep_says_what_is_refused_and_goes_on() -> None:
    arguments = ("--sweep", "add", "--shapes", "8192x49159,87616x4096", "--rule", "seed")
    refused, planned = shown(*arguments)["cases"]
    assert "cannot tile buf0 (8192x49159) automatically" in refused["refused"]
    assert (refused["tiles"], refused["window_nbytes"], refused["planned"]) == (None, None, [])
    assert planned["tiles"] == 4
    for table in (call(*arguments), call(*arguments, "--markdown")):
        assert table.exit_code == 0
        assert "8192x49159 float16: cannot tile buf0" in table.stdout
    assert "dir kept" not in table.stderr


@pytest.mark.parametrize(
    ("spec", "shape", "ops"),
    [
        ("mul", "98000x4096", {"mul"}),
        ("softmax", "98000x8192", {"max", "sum", "sub", "exp", "truediv"}),
        ("softmax:0", "8192x98000", {"max", "sum"}),
        ("linear", "49159x4096", {"batchmatmul"}),
        ("linear", "5x49159x4096", {"batchmatmul"}),
        ("matmul", "4096x87616", {"batchmatmul"}),
        ("matmul", "3x4096x87616", {"batchmatmul"}),
        ("matmul", "2x3x4096x87616", {"batchmatmul"}),
    ],
)
def test_operations_by_name(spec: str, shape: str, ops: set[str]) -> None:
    with config.patch(ignore_span_overflow_hints=False):
        (case,) = sweep(spec, shape).cases
    assert not case.refused
    assert ops <= {planned.op for planned in case.planned}
    assert case.tiles is not None
    assert case.tiles > 1
    assert case.window_nbytes is not None
    assert case.window_nbytes <= 2**28


def test_sweep_over_a_function_of_a_file_gives_each_argument_the_shape(model: str) -> None:
    document = shown("--sweep", f"{model}:three", "--shapes", "98000x4096,8x64:float32", "--dtype", "float16, bfloat16")
    assert [(case["shape"], case["dtype"]) for case in document["cases"]] == [
        ([98000, 4096], "float16"), ([98000, 4096], "bfloat16"), ([8, 64], "float32"),
    ]  # fmt: skip
    assert [case["tiles"] for case in document["cases"]] == [4, 4, 1]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["{model}"], 1, "it names no function"),
        (["{model}:nothing"], 1, "has no function 'nothing'"),
        (["{model}:number"], 1, "has no function 'number'"),
        (["nowhere.py:feed"], 1, "there is no file 'nowhere.py'"),
        (["{model}:feed", "--input", "8by64"], 1, "it is no shape"),
        (["{model}:feed", "--input", "8x0"], 1, "it is no shape"),
        (["{model}:feed", "--input", "8x64:floats"], 1, "it is no shape"),
        (["{model}:feed", "--input", "8x64"], 1, "missing 1 required positional argument"),
        (["{model}:total", "--input", "8x64", "--plan-only"], 1, "Leave plan_only out"),
        (["{model}:feed", "--input", "8x64", "--input", "64x32", "--span", "wide"], 1, "wide"),
        (["{model}:feed", "--input", "8x64", "--input", "64x32", "--rule", "best"], 1, "rules are seed and window"),
        (["{model}:feed", "--input", "8x64", "--input", "64x32", "--html", "no/such/page.html"], 1, "No such file"),
        (["{model}:feed", "--cores", "33"], 2, "equal to 32"),
        (["{model}:feed", "--markdown"], 2, "--markdown belongs to --sweep"),
        ([], 2, "name FILE.py:FUNCTION"),
        (["{model}:feed", "--sweep", "add", "--shapes", "8x64"], 2, "name FILE.py:FUNCTION"),
        (["--sweep", "add"], 2, "go together"),
        (["{model}:feed", "--shapes", "8x64"], 2, "go together"),
        (["--sweep", "add", "--shapes", "8x64", "--input", "8x64"], 2, "not to --sweep"),
        (["--sweep", "add", "--shapes", "8x64", "--html", "page.html"], 2, "not to --sweep"),
        (["--sweep", "divide", "--shapes", "8x64"], 1, "it is no operation"),
        (["--sweep", "sum", "--shapes", "8x64"], 1, "it names no dim"),
        (["--sweep", "sum:x", "--shapes", "8x64"], 1, "it names no dim"),
        (["--sweep", "sum:2", "--shapes", "8x64"], 1, "there is no dim 2 among them"),
        (["--sweep", "softmax:-3", "--shapes", "8x64"], 1, "there is no dim -3 among them"),
        (["--sweep", "add:1", "--shapes", "8x64"], 1, "it is no operation"),
        (["--sweep", "add", "--shapes", "8x64,"], 1, "it is no shape"),
        (["--sweep", "add", "--shapes", "8x64", "--dtype", "half-size"], 1, "it is no shape"),
        (["--sweep", "linear", "--shapes", "64"], 1, "OUTxIN or ROWSxOUTxIN"),
        (["--sweep", "matmul", "--shapes", "2x2x2x2x2"], 1, "KxN, MxKxN or BATCHxMxKxN"),
    ],
)
def test_refusal_is_one_message_and_a_code(arguments: list[str], code: int, message: str, model: str) -> None:
    done = call(*(argument.format(model=model) for argument in arguments))
    assert done.exit_code == code, done.output
    assert message in " ".join(done.output.replace("│", " ").split())
    assert "Traceback" not in done.output


def test_overflow_without_tiles_is_refused_with_what_to_do(model: str) -> None:
    refused = call(f"{model}:three", *("--input", "98000x4096") * 3, "--plan-only", "--cores", "1")
    assert refused.exit_code == 1
    text = " ".join(refused.output.split())
    assert "one core's window into" in text
    assert "automatic tiling" in text


PAGE = Path(__file__).parents[2] / "docs" / "spans.md"
TABLES = re.findall(
    r"^\$ strideweave explain (--sweep [^\n]*--markdown)\n```\n\n(.*?)\n\n(?!\||- )", PAGE.read_text(), re.M | re.S
)


@pytest.mark.parametrize(("command", "table"), TABLES, ids=[command for command, _ in TABLES])
def test_table_of_the_page_is_what_the_command_prints(command: str, table: str) -> None:
    done = call(*command.split())
    assert done.exit_code == 0, done.output
    # Everything up to the next paragraph of the page.
    assert (
        PAGE.read_text()
        .partition(f"$ strideweave explain {command}\n```\n\n")[2]
        .startswith(done.stdout.strip() + "\n\n")
    )
    assert table in done.stdout


def test_page_has_tables_of_both_rules() -> None:
    assert len(TABLES) >= 6
    assert {"--rule seed" in command for command, _ in TABLES} == {True, False}


def test_page_names_every_switch_with_its_variable_and_default() -> None:
    source = (PAGE.parents[1] / "src/strideweave/spyre/config.py").read_text()
    declared = {
        name: (variable, default)
        for name, variable, default in re.findall(
            r'^(\w+): \w+ = (?:_flag|os\.environ\.get)\("(\w+)", "(\w+)"\)', source, re.M
        )
        if name.startswith("span_") or name in ("ignore_span_overflow_hints", "ignore_wsr_hints")
    }
    told = {
        name: (variable, default)
        for name, variable, default in re.findall(r"^\| `(\w+)` \| `(\w+)` \| (\w+) \|", PAGE.read_text(), re.M)
    }
    assert len(declared) == 9
    assert declared.items() <= told.items()
