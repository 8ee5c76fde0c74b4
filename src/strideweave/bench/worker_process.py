"""The process that runs jobs, each in a forked child: what it has imported costs no child any time.

A child enters its memory limit before it does anything, so what it takes counts; the interpreter and torch, which it
shares with this process, do not. Jobs come as lines of JSON on standard input, outcomes go as such on standard output.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from strideweave.bench.limits import MemoryLimit
from strideweave.bench.measure import BusyCores, anonymous_nbytes

_LOOK_AGAIN_S = 0.005


def main(preloaded: list[str]) -> None:
    """Run jobs until the input ends."""
    for module in preloaded:
        with suppress(ImportError):  # a peer that is not installed
            importlib.import_module(module)
    gc.collect()
    gc.freeze()
    outcomes = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a contestant prints is no outcome
    for line in sys.stdin:
        outcomes.write(json.dumps(run_forked(json.loads(line))) + "\n")
        outcomes.flush()


def run_forked(job: dict[str, Any]) -> dict[str, Any]:
    """What the job told, or how its process ended: {"told": ...}, {"signal": number} or {"status": number}."""
    source, sink = os.pipe()
    child = os.fork()
    if not child:
        os.close(source)
        _run_in_child(job, sink)
    os.close(sink)
    told, peak_nbytes = _watched(child, source)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status)}
    code = os.waitstatus_to_exitcode(status)
    return {"status": code} if code else {"told": {**json.loads(told), "peak_anonymous_nbytes": peak_nbytes}}


def _watched(child: int, source: int) -> tuple[bytes, int]:
    """What a child told, and the most anonymous memory that it had: seen from here, it costs the child nothing."""
    parts, peak_nbytes = [], 0
    while True:
        ready, _, _ = select.select([source], [], [], _LOOK_AGAIN_S)
        part = os.read(source, 2**16) if ready else None
        with suppress(OSError, LookupError):  # it has ended
            peak_nbytes = max(peak_nbytes, anonymous_nbytes(child))
        if part:
            parts.append(part)
        elif part is not None:
            os.close(source)
            return b"".join(parts), peak_nbytes


def _run_in_child(job: dict[str, Any], sink: int) -> NoReturn:
    """Ends with what runs at exit, so that directories and files of the child go with it."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asked decides
        MemoryLimit(Path(job["group"]) if job["group"] else None).enter()
        told = json.dumps(perform(job["function"], job["arguments"]))
        with os.fdopen(sink, "w") as pipe:
            pipe.write(told)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        atexit._run_exitfuncs()
        sys.stderr.flush()
        os._exit(code)  # threads of peers that still run would abort an ordinary end


def perform(function: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """What the function tells, with what it used. Units: bytes, seconds, cores."""
    module, _, name = function.partition(":")
    work = getattr(importlib.import_module(module), name)
    base_nbytes = anonymous_nbytes()
    with BusyCores() as busy:
        told = work(**arguments)
    return {
        "base_anonymous_nbytes": base_nbytes,
        "cpu_s": busy.own_s,
        "others_cores": busy.others_cores,
        **told,
    }


if __name__ == "__main__":
    main(sys.argv[1:])
