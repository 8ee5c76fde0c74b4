from __future__ import annotations

import inspect
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from strideweave.io import Lanes, Priority, default_lanes


def lane_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("strideweave-lane-")]


def wait_until(condition: Callable[[], bool], timeout_s: float = 5.0) -> bool:
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


class Gate:
    """Keeps the only lane busy until it is opened."""

    def __init__(self, lanes: Lanes) -> None:
        self._open, started = threading.Event(), threading.Event()

        def wait() -> None:
            started.set()
            self._open.wait(10)

        lanes.submit(wait)
        assert started.wait(5)

    def open(self) -> None:
        self._open.set()


def test_submit_one_priority_runs_first_in_first_out() -> None:
    lanes, order = Lanes(1), []
    gate = Gate(lanes)
    for k in range(50):
        lanes.submit(lambda k=k: order.append(k))
    gate.open()
    lanes.close()
    assert order == list(range(50))


def test_submit_urgent_jobs_overtake_and_keep_their_order() -> None:
    lanes, order = Lanes(1), []
    gate = Gate(lanes)
    for k in range(4):
        for priority in reversed(Priority):
            lanes.submit(lambda p=priority, k=k: order.append((p, k)), priority)
    gate.open()
    lanes.close()
    assert order == [(p, k) for p in Priority for k in range(4)]


def test_cancel_of_a_waiting_job_says_so_once_and_it_never_runs() -> None:
    lanes, order = Lanes(1), []
    gate = Gate(lanes)
    jobs = [lanes.submit(lambda k=k: order.append(k), Priority.PREFETCH) for k in range(4)]
    assert [jobs[1].cancel(), jobs[1].cancel(), jobs[1].hurry()] == [True, False, False]
    gate.open()
    lanes.close()
    assert order == [0, 2, 3]
    assert [job.cancel() for job in jobs] == [False] * 4


def test_cancel_of_all_jobs_leaves_the_lanes_idle() -> None:
    lanes = Lanes(1)
    gate = Gate(lanes)
    assert all(lanes.submit(lambda: None, p).cancel() for p in Priority)
    gate.open()
    assert wait_until(lambda: lanes.idle)
    assert "0 jobs waiting" in repr(lanes)
    lanes.close()


def test_cancel_of_a_running_job_is_refused() -> None:
    lanes, started, go, done = Lanes(1), threading.Event(), threading.Event(), []

    def call() -> None:
        started.set()
        go.wait(5)
        done.append(1)

    job = lanes.submit(call)
    assert started.wait(5)
    assert not job.cancel()
    assert not job.hurry()
    go.set()
    lanes.close()
    assert done == [1]


def test_cancel_lets_go_of_what_the_job_holds() -> None:
    class Held:
        def __call__(self) -> None:
            pass

    lanes, held = Lanes(1), Held()
    gate, seen = Gate(lanes), weakref.ref(held)
    job = lanes.submit(held)
    del held
    job.cancel()
    assert seen() is None
    gate.open()
    lanes.close()


def test_hurry_goes_before_less_urgent_jobs_and_behind_its_equals() -> None:
    lanes, order = Lanes(1), []
    gate = Gate(lanes)
    jobs = {
        name: lanes.submit(lambda name=name: order.append(name), priority)
        for name, priority in [
            ("guess 0", Priority.PREFETCH),
            ("guess 1", Priority.PREFETCH),
            ("write", Priority.WRITE_BACK),
            ("demand", Priority.DEMAND),
        ]
    }
    assert jobs["guess 1"].hurry()
    assert jobs["guess 1"].priority is Priority.DEMAND
    assert jobs["demand"].hurry(Priority.PREFETCH)  # never less urgent than it was
    gate.open()
    lanes.close()
    assert order == ["demand", "guess 1", "write", "guess 0"]


def test_cancel_and_hurry_from_many_threads_run_every_job_once_or_call_it_off() -> None:
    lanes, ran, off, lock = Lanes(3), [], [], threading.Lock()

    def job(k: int) -> None:
        with lock:
            ran.append(k)

    def feed(base: int) -> None:
        for k in range(base, base + 300):
            submitted = lanes.submit(lambda k=k: job(k), list(Priority)[k % 3])
            if k % 2:
                submitted.hurry()
            if k % 5 < 2 and submitted.cancel():
                with lock:
                    off.append(k)

    feeders = [threading.Thread(target=feed, args=(300 * n,)) for n in range(4)]
    for feeder in feeders:
        feeder.start()
    for feeder in feeders:
        feeder.join()
    lanes.close()
    assert sorted(ran + off) == list(range(1200))


def test_submit_many_jobs_uses_no_more_threads_than_lanes_and_all_of_them() -> None:
    lanes = Lanes(3, idle_s=0.05)
    together = threading.Barrier(3)
    names = set()

    def job() -> None:
        names.add(threading.current_thread().name)
        together.wait(5)

    for _ in range(3):
        lanes.submit(job)
    assert wait_until(lambda: lanes.idle)
    assert names == {"strideweave-lane-0", "strideweave-lane-1", "strideweave-lane-2"}
    lanes.close()


def test_submit_several_jobs_to_one_idle_lane_starts_more() -> None:
    lanes, together = Lanes(3), threading.Barrier(3)
    lanes.submit(lambda: None)
    assert wait_until(lambda: lanes._waiting == 1)
    with lanes._changed:  # so that the idle lane takes none before all are there
        for _ in range(3):
            lanes.submit(lambda: together.wait(5) and None)
    assert wait_until(lambda: lanes.idle)
    assert not together.broken
    lanes.close()


def test_submit_from_many_threads_runs_every_job_once() -> None:
    lanes, done, lock = Lanes(4), [], threading.Lock()

    def job(k: int) -> None:
        with lock:
            done.append(k)

    def feed(base: int) -> None:
        for k in range(250):
            lanes.submit(lambda k=k: job(base + k))

    feeders = [threading.Thread(target=feed, args=(250 * n,)) for n in range(4)]
    for feeder in feeders:
        feeder.start()
    for feeder in feeders:
        feeder.join()
    lanes.close()
    assert sorted(done) == list(range(1000))
    assert lanes.idle


def test_lanes_without_work_end_and_start_again() -> None:
    lanes, done = Lanes(2, idle_s=0.05), []
    for k in range(3):
        lanes.submit(lambda k=k: done.append(k))
        assert wait_until(lambda: not lanes._threads)
        assert wait_until(lambda: not lane_threads())
    assert done == [0, 1, 2]
    assert inspect.signature(Lanes).parameters["idle_s"].default == 1.0


def test_submit_racing_with_the_end_of_idle_lanes_loses_no_job() -> None:
    lanes, done = Lanes(2, idle_s=0.001), []
    for k in range(200):
        lanes.submit(lambda k=k: done.append(k))
        time.sleep(0.001)
    lanes.close()
    assert sorted(done) == list(range(200))


def test_job_that_raises_is_reported_and_the_lane_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", reports.append)
    lanes, done = Lanes(1), []
    for error in (ValueError("bad tile"), SystemExit(3)):

        def job(error: BaseException = error) -> None:
            raise error

        lanes.submit(job)
    lanes.submit(lambda: done.append(threading.current_thread().name))
    lanes.close()
    assert [(r.exc_type, str(r.exc_value), r.thread.name) for r in reports] == [
        (ValueError, "bad tile", "strideweave-lane-0"),
        (SystemExit, "3", "strideweave-lane-0"),
    ]
    assert done == ["strideweave-lane-0"]
    assert lanes.idle


def test_job_done_is_let_go_while_the_lane_waits() -> None:
    class Held:
        def __call__(self) -> None:
            pass

    lanes, job = Lanes(1), Held()
    seen = weakref.ref(job)
    lanes.submit(job)
    del job
    assert wait_until(lambda: seen() is None)
    assert lane_threads()
    lanes.close()


def test_close_runs_what_was_submitted_and_refuses_more() -> None:
    lanes, done = Lanes(2), []
    for k in range(20):

        def job(k: int = k) -> None:
            time.sleep(0.001)
            done.append(k)

        lanes.submit(job, Priority.PREFETCH)
    lanes.close()
    assert sorted(done) == list(range(20))
    assert not lanes._threads
    with pytest.raises(RuntimeError, match="closed"):
        lanes.submit(lambda: None)
    lanes.close()


def test_close_without_wait_returns_while_jobs_run() -> None:
    lanes = Lanes(1)
    gate = Gate(lanes)
    lanes.close(wait=False)
    assert not lanes.idle
    gate.open()
    assert wait_until(lambda: lanes.idle)


def test_close_from_a_job_does_not_wait_for_itself() -> None:
    lanes, done = Lanes(1), threading.Event()

    def job() -> None:
        lanes.close()
        done.set()

    lanes.submit(job)
    assert done.wait(5)


def test_lanes_after_fork_start_afresh(run: Callable[..., str]) -> None:
    out = run("""
lanes, open = Lanes(1), threading.Event()
lanes.submit(lambda: open.wait(30) and None)
lanes.submit(lambda: print("the parent's job", flush=True))
lanes._changed.acquire()  # as if another thread were inside
pid = os.fork()
if not pid:
    done = threading.Event()
    lanes.submit(done.set)
    os._exit(0 if done.wait(10) and lanes.idle or time.sleep(0.2) or lanes.idle else 1)
lanes._changed.release()
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
open.set()
lanes.close()
""")
    assert out == "0\nthe parent's job"


def test_lanes_busy_do_not_hold_up_ctrl_c(start: Callable[..., Any]) -> None:
    process = start("""
lanes = Lanes(1)
lanes.submit(lambda: (print("busy", flush=True), time.sleep(60)) and None)
lanes.close()
""")
    assert process.stdout.readline() == "busy\n"
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert time.monotonic() - begin < 5
    assert "KeyboardInterrupt" in err


def test_lanes_idle_use_no_processor_time() -> None:
    lanes = Lanes(4)
    together = threading.Barrier(4)
    for _ in range(4):
        lanes.submit(lambda: together.wait(5) and None)
    assert wait_until(lambda: lanes.idle)
    begin = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - begin < 0.05
    lanes.close()


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5"])
def test_default_lanes_with_a_bad_count_names_the_variable(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from strideweave.io import lanes as module

    monkeypatch.setattr(module, "_default", None)
    monkeypatch.setenv("STRIDEWEAVE_LANES", text)
    with pytest.raises(ValueError, match="STRIDEWEAVE_LANES"):
        default_lanes()


def test_default_lanes_takes_its_count_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from strideweave.io import lanes as module

    monkeypatch.setattr(module, "_default", None)
    assert default_lanes().count == 4
    default_lanes().close()
    monkeypatch.setenv("STRIDEWEAVE_LANES", "7")
    assert default_lanes().count == 7
    assert default_lanes() is default_lanes()


def test_end_of_the_interpreter_waits_for_running_jobs_and_begins_no_other() -> None:
    code = (
        "import time\n"
        "from strideweave.io import default_lanes\n"
        "lanes = default_lanes()\n"
        "for k in range(40):\n"
        "    lanes.submit(lambda k=k: (time.sleep(0.3), print(k, flush=True)))\n"
        "time.sleep(0.1)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert sorted(map(int, ended.stdout.split())) == [0, 1, 2, 3]
