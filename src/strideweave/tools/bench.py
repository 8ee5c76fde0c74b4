"""The commands `strideweave bench ...`. Each is thin: what it does stands in `strideweave.bench`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strideweave.tools.console import EXIT_REFUSED, Json, err, print_json, refusals

if TYPE_CHECKING:
    from strideweave.bench.report import Report
    from strideweave.bench.running import Say

bench = typer.Typer(
    help="Measure this machine: StrideWeave beside its peers and beside the raw limit, in one run.",
    epilog="Example: strideweave bench io --quick",
    no_args_is_help=True,
    add_completion=False,
)

Quick = Annotated[bool, typer.Option("--quick", help="Less data and fewer rounds: under 40 seconds.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown, as in docs/performance.md.")]
Rounds = Annotated[int | None, typer.Option(min=1, help="How often everything is measured.", show_default=False)]
Directory = Annotated[
    Path | None, typer.Option(help="Where the files are put. Default: our cache directory.", show_default=False)
]


@bench.callback()
def options() -> None:
    """Nothing but the commands."""


@bench.command(epilog="Example: strideweave bench io --quick | Example: strideweave bench io --rounds 9 --markdown")
def io(
    quick: Quick = False,
    as_json: Json = False,
    markdown: Markdown = False,
    rounds: Rounds = None,
    directory: Directory = None,
) -> None:
    """Tiles from the disk and back, beside the disk itself."""

    def measure(say: Say) -> Report:
        from strideweave.bench.io.run import measure

        return measure(quick=quick, rounds=rounds, directory=directory, say=say)

    _run(measure, as_json=as_json, markdown=markdown)


@bench.command(
    epilog="Example: strideweave bench moe --quick | Example: strideweave bench moe --parts prefill --rounds 5 --json"
)
def moe(
    quick: Quick = False,
    as_json: Json = False,
    markdown: Markdown = False,
    rounds: Rounds = None,
    parts: Annotated[str, typer.Option(help="Some of them, with commas between.")] = "decode,prefill,fits",
    contestants: Annotated[
        str | None, typer.Option(help="Some of them, with commas; a wrong name lists all.", show_default=False)
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Decode steps.", show_default=False)] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of weights, tokens and routes. Default: 7.", show_default=False)
    ] = None,
    directory: Directory = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the weights there and use them again.")] = False,
) -> None:
    """Steps of a mixture of experts that does not fit in memory."""

    def measure(say: Say) -> Report:
        from strideweave.bench.moe.contestants import ENTRIES
        from strideweave.bench.moe.parts import measure

        return measure(
            quick=quick,
            parts=_listed(parts),
            contestants=tuple(ENTRIES) if contestants is None else _listed(contestants),
            rounds=rounds,
            steps=steps,
            seed=seed,
            directory=directory,
            keep=keep,
            say=say,
        )

    _run(measure, as_json=as_json, markdown=markdown)


@bench.command(
    epilog="Example: strideweave bench stream --quick | Example: strideweave bench stream --operations matmul --json"
)
def stream(
    quick: Quick = False,
    as_json: Json = False,
    markdown: Markdown = False,
    rounds: Rounds = None,
    operations: Annotated[str, typer.Option(help="Some of them, with commas between.")] = "sum0,sum1,matmul,add_relu",
    contestants: Annotated[
        str | None, typer.Option(help="Some of them, with commas; a wrong name lists all.", show_default=False)
    ] = None,
    directory: Directory = None,
) -> None:
    """Sums, products and pointwise operations over operands that do not fit in memory."""

    def measure(say: Say) -> Report:
        from strideweave.bench.stream.contestants import ENTRIES
        from strideweave.bench.stream.run import measure

        return measure(
            quick=quick,
            operations=_listed(operations),
            contestants=tuple(ENTRIES) if contestants is None else _listed(contestants),
            rounds=rounds,
            directory=directory,
            say=say,
        )

    _run(measure, as_json=as_json, markdown=markdown)


def _listed(text: str) -> list[str]:
    """The names between commas, each once."""
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _run(measure: Callable[[Say], Report], *, as_json: bool, markdown: bool) -> None:
    """Measure and print. What is missed does not fail: a busy machine says little. Unequal results do."""
    from strideweave.bench.running import ended_cleanly

    with refusals(), ended_cleanly():
        report = measure(lambda text: err.print(text, style="dim", markup=False))
        if as_json:
            print_json(report.to_json())
        else:
            sys.stdout.write((report.to_markdown() if markdown else str(report)) + "\n")
        if not report.is_equal:
            raise typer.Exit(EXIT_REFUSED)
