"""What the commands share: where they print, and how they end."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console

EXIT_REFUSED, EXIT_INTERRUPTED = 1, 130
err = Console(stderr=True, highlight=False)
out = Console(highlight=False)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def print_json(document: dict[str, Any]) -> None:
    """One object on standard output."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


@contextmanager
def refusals() -> Iterator[None]:
    """Errors that a user can act on end as one message and a code, not as a trace."""
    try:
        yield
    except KeyboardInterrupt:
        err.print("\ninterrupted; nothing is left half-done")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except (ValueError, TypeError, RuntimeError, OSError, ImportError) as refusal:
        if isinstance(refusal, typer.Exit):
            raise
        err.print(f"error: {refusal}", markup=False)
        raise typer.Exit(EXIT_REFUSED) from None
