"""Jobs in processes of their own: what they tell, how they end, what they may take."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from strideweave.bench.limits import memory_limit
from strideweave.bench.workers import KILLED, Workers

HERE = "test_workers_jobs"


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    folder = tmp_path_factory.mktemp("jobs")
    (folder / f"{HERE}.py").write_text(
        "import os\n"
        "def pid(): return {'pid': os.getpid(), 'threads': os.environ['OMP_NUM_THREADS']}\n"
        "def touch(nbytes): return {'sum': sum(bytearray(b'\\1') * nbytes)}\n"
        "def fail(): raise ValueError('nothing to see')\n"
        "def end(): os.kill(os.getpid(), 9)\n"
        "def session():\n"
        "    from strideweave.io import session_directory\n"
        "    return {'path': str(session_directory())}\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        with Workers() as found:
            yield found


def test_every_job_has_a_process_of_its_own_with_one_thread(workers: Workers) -> None:
    one, other = (workers.run(f"{HERE}:pid").told for _ in range(2))
    assert one is not None
    assert other is not None
    assert len({one["pid"], other["pid"], os.getpid()}) == 3
    assert one["threads"] == "1"


def test_peak_of_anonymous_memory_is_what_the_job_took(workers: Workers) -> None:
    told = workers.run(f"{HERE}:touch", nbytes=64 * 2**20).told
    assert told is not None
    assert told["sum"] == 64 * 2**20
    assert 64 * 2**20 <= told["peak_anonymous_nbytes"] - told["base_anonymous_nbytes"] < 160 * 2**20


def test_job_that_raises_is_told_by_its_last_words_and_the_next_one_runs(workers: Workers) -> None:
    run = workers.run(f"{HERE}:fail")
    assert run.told is None
    assert run.failure == "failed with exit status 1: ValueError: nothing to see"
    assert workers.run(f"{HERE}:end").failure.startswith("failed with signal 9")
    assert workers.run(f"{HERE}:pid").told is not None


def test_session_directory_of_a_job_goes_with_it(workers: Workers) -> None:
    told = workers.run(f"{HERE}:session").told
    assert told is not None
    assert not os.path.exists(told["path"])  # noqa: PTH110


def test_memory_limit_ends_a_job_that_takes_more_and_no_other(workers: Workers) -> None:
    limit = 128 * 2**20
    with memory_limit(limit) as trial:
        if trial.group is None:
            pytest.skip(trial.reason)
    assert workers.run(f"{HERE}:touch", limit_nbytes=limit, nbytes=8 * 2**20).told is not None
    run = workers.run(f"{HERE}:touch", limit_nbytes=limit, nbytes=256 * 2**20)
    assert run.told is None
    assert run.failure == KILLED
    assert run.limit_nbytes == limit
