"""Jobs in processes of their own, one at a time, under a memory limit where one may be set."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

import strideweave
from strideweave.bench.limits import memory_limit

KILLED: Final = "killed by the memory limit"
_PRELOADED = ("torch", "numpy", "strideweave.public")


@dataclass(frozen=True, slots=True)
class Run:
    """One job: what it told, or why it told nothing. Units: bytes."""

    told: dict[str, Any] | None
    limit_nbytes: int | None
    """The memory limit that it ran under, if any."""
    failure: str = ""


class Workers:
    """A process that has imported `modules` and forks a child for every job; it goes when the block ends.

    Computing is done by one thread. What jobs print goes to a file, and is shown for those that fail.
    """

    def __init__(self, *modules: str) -> None:
        self._modules = modules

    def __enter__(self) -> Workers:
        home = str(Path(strideweave.__file__).parents[1])
        paths = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "strideweave.bench.worker_process", *_PRELOADED, *self._modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **one_thread, "PYTHONPATH": paths},
            start_new_session=True,  # Ctrl-C is for this process, which ends the other
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._jobs: IO[str] = self._process.stdin
        self._outcomes: IO[str] = self._process.stdout
        return self

    def run(self, function: str, *, limit_nbytes: int | None = None, **arguments: Any) -> Run:
        """The job `function`, a "module:name" that gives back what JSON can say, called with `arguments`.

        Errors: RuntimeError when the process that forks has ended.
        """
        if limit_nbytes is None:
            return self._run(function, arguments, None, None)
        with memory_limit(limit_nbytes) as limit:
            return self._run(function, arguments, limit.group, limit_nbytes if limit.group else None)

    def _run(self, function: str, arguments: dict[str, Any], group: Path | None, limit_nbytes: int | None) -> Run:
        before = self._errors.seek(0, os.SEEK_END)
        job = {"function": function, "arguments": arguments, "group": str(group) if group else None}
        try:
            self._jobs.write(json.dumps(job) + "\n")
            self._jobs.flush()
            line = self._outcomes.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise RuntimeError(
                f"cannot run {function}: the process that forks has ended with status {self._process.poll()}. It must "
                f"outlive its jobs. It said: {self._said(0)}"
            )
        outcome = json.loads(line)
        if "told" in outcome:
            return Run(outcome["told"], limit_nbytes)
        if outcome.get("signal") == signal.SIGKILL and limit_nbytes is not None:
            return Run(None, limit_nbytes, KILLED)
        how = f"signal {outcome['signal']}" if "signal" in outcome else f"exit status {outcome['status']}"
        return Run(None, limit_nbytes, f"failed with {how}: {self._said(before)}")

    def _said(self, begin: int) -> str:
        """The last line of what was printed from a place on."""
        self._errors.seek(begin)
        lines = self._errors.read().strip().splitlines()
        return lines[-1] if lines else "nothing was said"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._jobs.close()
        else:
            os.killpg(self._process.pid, signal.SIGKILL)  # a session of its own: nobody else is in it
        self._process.wait()
        self._outcomes.close()
        self._errors.close()
