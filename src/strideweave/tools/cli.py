"""The command line. Each command is thin: what it does stands in a module of its own."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from tqdm import tqdm

from strideweave import __version__
from strideweave.carriers.tiled_evictable.budget import format_nbytes
from strideweave.tools.bench import bench
from strideweave.tools.console import EXIT_REFUSED, Json
from strideweave.tools.console import err as _err
from strideweave.tools.console import out as _out
from strideweave.tools.console import print_json as _print_json
from strideweave.tools.console import refusals as _refusals

_CODES = "Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 130 interrupted."
_DEMO_PROMPT = "Explain in a few sentences why the sky is blue."

app = typer.Typer(
    name="strideweave",
    help="Run Mixture-of-Experts models whose experts do not fit in memory. " + _CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(bench, name="bench")

Budget = Annotated[
    str | None,
    typer.Option(help="Bytes of experts in memory: 2GiB, 500MB, 4096. Default: a quarter of them."),
]
Tokens = Annotated[int, typer.Option(min=1, help="The most tokens to generate.")]
Verify = Annotated[
    bool,
    typer.Option(help="Run the stock model too, every expert in memory, and compare all logits bit for bit."),
]
Prompt = Annotated[str, typer.Option(help="What to ask. A chat template is applied when the model has one.")]
Checkpoint = Annotated[Path, typer.Argument(help="A Hugging Face checkpoint folder.", show_default=False)]


def _version(asked: bool) -> None:
    if asked:
        _out.print(f"strideweave {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of the whole program."""


@app.command(epilog="Example: strideweave demo --verify")
def demo(
    prompt: Prompt = _DEMO_PROMPT,
    budget: Budget = None,
    max_new_tokens: Tokens = 96,
    verify: Verify = False,
    as_json: Json = False,
) -> None:
    """Build a real 1.3 GiB MoE checkpoint once, and answer a question with a quarter of its experts in memory."""
    with _refusals():
        path = _demo_checkpoint()
        _run(path, budget, prompt, max_new_tokens, verify=verify, as_json=as_json)


@app.command(epilog='Example: strideweave run ~/models/Qwen3-30B-A3B --budget 8GiB --prompt "Why is the sky blue?"')
def run(
    path: Checkpoint,
    prompt: Prompt = _DEMO_PROMPT,
    budget: Budget = None,
    max_new_tokens: Tokens = 128,
    verify: Verify = False,
    as_json: Json = False,
) -> None:
    """Generate an answer with a checkpoint's experts on disk, and say what it cost."""
    with _refusals():
        _run(path, budget, prompt, max_new_tokens, verify=verify, as_json=as_json)


@app.command(epilog="Example: strideweave plan ~/models/Mixtral-8x7B --budget 16GiB --json")
def plan(path: Checkpoint, budget: Budget = None, as_json: Json = False) -> None:
    """Say what a checkpoint needs under a budget, from its headers only; refuse with numbers what cannot work."""
    with _refusals():
        from strideweave.integrations.transformers import plan as plan_checkpoint
        from strideweave.tools.report import plan_table

        numbers = plan_checkpoint(path, budget)
        if as_json:
            _print_json(asdict(numbers))
        else:
            _out.print(plan_table(numbers))


@app.command(
    epilog="Example: strideweave trace --max-new-tokens 32 | "
    "Example: strideweave trace ~/models/Qwen3-30B-A3B --budget 8GiB --out qwen.json --html qwen.html"
)
def trace(
    path: Annotated[
        Path | None, typer.Argument(help="A Hugging Face checkpoint folder. Default: the demo model.")
    ] = None,
    prompt: Prompt = _DEMO_PROMPT,
    budget: Budget = None,
    max_new_tokens: Tokens = 48,
    out: Annotated[Path, typer.Option(help="Where the timeline goes, for Perfetto or chrome://tracing.")] = Path(
        "trace.json"
    ),
    html: Annotated[Path, typer.Option(help="Where the page goes.")] = Path("trace.html"),
    as_json: Json = False,
) -> None:
    """Generate an answer, and show every read, wait and computation: a timeline, a page, and a table of layers."""
    with _refusals():
        from strideweave.tools.traced import require_places

        require_places(out, html)
        _trace(path or _demo_checkpoint(), budget, prompt, max_new_tokens, out=out, html=html, as_json=as_json)


@app.command(
    epilog="Example: strideweave explain model.py:forward --input 8x64 --input 64x32:float16 --html page.html | "
    "Example: strideweave explain --sweep add --shapes 87616x4096,98000x4096:float32 --cores 1"
)
def explain(
    target: Annotated[str | None, typer.Argument(help="FILE.py:FUNCTION.", show_default=False)] = None,
    inputs: Annotated[
        list[str] | None, typer.Option("--input", help="One for each argument: extents, and a dtype after a colon.")
    ] = None,
    cores: Annotated[int | None, typer.Option(min=1, max=32, help="How many cores the card has. Default: 32.")] = None,
    span: Annotated[str | None, typer.Option(help="The window of one core: 256MiB, 8KiB. Default: 256MiB.")] = None,
    rule: Annotated[
        str | None, typer.Option(help="Tile automatically what overflows, by the rule seed or window.")
    ] = None,
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Run nothing, so that inputs need no memory. A sweep never runs.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page to this file instead.", show_default=False)] = None,
    sweep: Annotated[
        str | None,
        typer.Option(help="A table over shapes: add, mul, sum:DIM, softmax, linear, matmul or FILE.py:FUNCTION."),
    ] = None,
    shapes: Annotated[
        str | None, typer.Option(help="Of a sweep: 87616x4096,98000x4096:float32. Tiled automatically.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="Of shapes that name none; commas between several.")] = "float16",
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table of a sweep in Markdown.")] = False,
    as_json: Json = False,
) -> None:
    """Compile a function for the software card: every operation with its windows, tiles, cores and loops."""
    with _refusals():
        from strideweave.carriers.tiled_evictable.budget import parse_nbytes
        from strideweave.spyre import config
        from strideweave.tools.explain import explain_target, switches

        _require_one(target, inputs, html, sweep, shapes, markdown=markdown)
        nbytes = None if span is None else parse_nbytes(span)
        changed = switches(cores=cores, span_nbytes=nbytes, rule=rule, automatic=sweep is not None)
        with config.patch(changed):
            if sweep is not None:
                from strideweave.tools.sweep import sweep as table_of

                table = table_of(sweep, shapes or "", dtypes=dtype)
                _show(table, table.to_markdown() if markdown else str(table), as_json=as_json)
                return
            report = explain_target(target or "", inputs or [], plan_only=plan_only)
            if html is not None:
                html.write_text(report.to_html(f"{Path(target or '').name} on the card"), encoding="utf-8")
                if not as_json:
                    _out.print(f"wrote {html}: {len(report.rows)} operations", markup=False, soft_wrap=True)
                    return
            _show(report, str(report), as_json=as_json)


def _require_one(
    target: str | None,
    inputs: list[str] | None,
    html: Path | None,
    sweep: str | None,
    shapes: str | None,
    *,
    markdown: bool,
) -> None:
    """Refuse options that do not go together."""
    if (target is None) == (sweep is None):
        raise typer.BadParameter("name FILE.py:FUNCTION, or an operation with --sweep")
    if (sweep is None) != (shapes is None):
        raise typer.BadParameter("--sweep and --shapes go together")
    if sweep is not None and (inputs or html is not None):
        raise typer.BadParameter("--input and --html belong to FILE.py:FUNCTION, not to --sweep")
    if sweep is None and markdown:
        raise typer.BadParameter("--markdown belongs to --sweep")


def _show(result: Any, text: str, *, as_json: bool) -> None:
    """What was found: as one JSON object, or as text whose lines are as long as they are."""
    if as_json:
        _print_json(result.to_json())
    else:
        _out.print(text, markup=False, soft_wrap=True)


@app.command(epilog="Example: strideweave inspect ~/models/Qwen3-30B-A3B --json")
def inspect(path: Checkpoint, as_json: Json = False) -> None:
    """Say what a checkpoint holds: shards, dtypes, experts, bytes; from its headers only."""
    with _refusals():
        from strideweave.tools.report import contents_table
        from strideweave.tools.verify import as_json as document
        from strideweave.tools.verify import contents

        found = contents(path)
        if as_json:
            _print_json(document(found))
        else:
            _out.print(contents_table(found))


@app.command(
    epilog="Example: strideweave verify ~/models/Qwen3-30B-A3B --manifest qwen3.json (written once, compared later)"
)
def verify(
    path: Checkpoint,
    manifest: Annotated[
        Path | None, typer.Option(help="Checksums: written when it is not there, compared with when it is.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Read a checkpoint through: headers, every expert, finite values, checksums. Code 1 when something is wrong."""
    with _refusals():
        from strideweave.checkpoint import Checkpoint as Opened
        from strideweave.tools.report import verdict_table
        from strideweave.tools.verify import as_json as document
        from strideweave.tools.verify import verify as read_through

        with tqdm(total=Opened.open(path).nbytes, unit="B", unit_scale=True, desc="reading", disable=None) as bar:
            found = read_through(path, manifest, lambda nbytes: _advance(bar, nbytes))
        if as_json:
            _print_json(document(found))
        else:
            _out.print(verdict_table(found))
        if not found.is_good:
            raise typer.Exit(EXIT_REFUSED)


def _advance(bar: tqdm[Any], nbytes: int) -> None:
    bar.update(nbytes)


@app.command(epilog="Example: strideweave doctor --json")
def doctor(as_json: Json = False) -> None:
    """Say what this machine has for tensors that do not fit, and what would be slow, and why."""
    with _refusals():
        from strideweave.tools.doctor import diagnose
        from strideweave.tools.report import diagnosis_table

        found = diagnose()
        if as_json:
            _print_json(found.to_json())
        else:
            _out.print(diagnosis_table(found))
            for line in found.advice:
                _out.print(f"- {line}", markup=False, soft_wrap=True)


@app.command(epilog="Example: strideweave gc --dry-run")
def gc(
    dry_run: Annotated[bool, typer.Option(help="Say what would go, and remove nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Remove what ended processes left in StrideWeave's own directory; never anything else."""
    with _refusals():
        from strideweave.io import collect_garbage

        found = collect_garbage(dry_run=dry_run)
        if as_json:
            _print_json({"removed": [str(p) for p in found.removed], "nbytes": found.nbytes, "dry_run": dry_run})
        else:
            verb = "would remove" if dry_run else "removed"
            _out.print(f"{verb} {len(found.removed)} leftovers, {format_nbytes(found.nbytes)}")


def _demo_checkpoint() -> Path:
    """The demo checkpoint, built with a progress bar when it is not there yet."""
    from strideweave.tools.upcycle import build_upcycled_checkpoint, default_demo_path

    path = default_demo_path()
    if path.exists():
        return path
    _err.print(f"building the demo checkpoint in {path} (once; Ctrl-C keeps what is done)")
    _err.print("[dim]reading the small model that it is made from ...[/dim]")
    bars: list[Any] = []  # the bar begins with the first bytes, after the source has been read

    def progress(done: int, total: int) -> None:
        if not bars:
            bars.append(tqdm(total=total, unit="B", unit_scale=True, unit_divisor=1024, desc="upcycling"))
        bars[0].update(done - bars[0].n)

    try:
        return build_upcycled_checkpoint(path, progress=progress)
    finally:
        for bar in bars:
            bar.close()


def _run(path: Path, budget: str | None, prompt: str, max_new_tokens: int, *, verify: bool, as_json: bool) -> None:
    from strideweave.integrations.transformers import plan as plan_checkpoint
    from strideweave.tools.generate import answer
    from strideweave.tools.report import plan_table, residency_picture, run_table

    _quiet_transformers()
    numbers = plan_checkpoint(path, budget)
    if not as_json:
        _out.print(plan_table(numbers))
        _out.print(f"\n[bold]{prompt}[/bold]\n", markup=True)
    report = answer(
        path,
        numbers.budget_nbytes,
        prompt,
        max_new_tokens=max_new_tokens,
        verify=verify,
        write=(lambda text: None) if as_json else _write,
        note=lambda text: None if as_json else _err.print(f"[dim]{text} ...[/dim]"),
    )
    if as_json:
        _print_json(report.as_json())
    else:
        _out.print()
        _out.print(run_table(report))
        _out.print("\n" + residency_picture(report.residency))
    if report.verified is False:
        raise typer.Exit(EXIT_REFUSED)


def _trace(
    path: Path, budget: str | None, prompt: str, max_new_tokens: int, *, out: Path, html: Path, as_json: bool
) -> None:
    from strideweave.tools.traced import against_best, traced_answer, traced_table

    _quiet_transformers()
    if not as_json:
        _out.print(f"[bold]{escape(prompt)}[/bold]\n", markup=True)
    run = traced_answer(
        path,
        budget,
        prompt,
        max_new_tokens=max_new_tokens,
        out=out,
        html=html,
        write=(lambda text: None) if as_json else _write,
        note=lambda text: None if as_json else _err.print(f"[dim]{text} ...[/dim]"),
    )
    if as_json:
        _print_json(run.as_json())
    else:
        _out.print()
        _out.print(traced_table(run))
        _out.print(f"\n{against_best(run.report)}", markup=False, soft_wrap=True)
        _out.print(f"wrote {out} ({run.events} events) and {html}", markup=False, soft_wrap=True)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _quiet_transformers() -> None:
    """Its own bars and notices would run through the streamed text."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def main() -> None:
    """The entry point of the `strideweave` command."""
    app()
