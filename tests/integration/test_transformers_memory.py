"""A budget is a promise about memory, and reading is a promise about bytes. Both are measured from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from transformers import MixtralForCausalLM, Qwen3MoeForCausalLM

from strideweave.checkpoint import Checkpoint
from strideweave.integrations.transformers import from_pretrained, plan
from support.models import generate, mixtral_config, qwen3_config, save

MIB = 2**20
STEPS = 200

_MEASURE = """
import json, sys, threading, time
import torch
from strideweave.integrations.transformers import from_pretrained
from transformers import AutoModelForCausalLM
torch.set_num_threads(1)

def anonymous():
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024

start = peak = anonymous()
steps = []
over = False

def watch():
    global peak
    while not over:
        peak = max(peak, anonymous())
        time.sleep(0.002)

watcher = threading.Thread(target=watch)
watcher.start()
if sys.argv[3] == "stock":
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], experts_implementation="eager", dtype="auto")
else:
    model = from_pretrained(sys.argv[1], budget=int(sys.argv[2]))

class Count:
    def put(self, value): steps.append(anonymous())
    def end(self): pass

ids = torch.tensor([[3, 4, 5, 6]])
n = int(sys.argv[4])
kw = dict(max_new_tokens=n, min_new_tokens=n, do_sample=False, streamer=Count())
model.generate(ids, attention_mask=torch.ones_like(ids), **kw)
over = True
watcher.join()
print(json.dumps({"grown": peak - start, "steps": steps[1:]}))
"""


def measure(path: Path, budget: int, *, how: str = "ours", steps: int = STEPS) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_MEASURE), str(path), str(budget), how, str(steps)],
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    measured: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return measured


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 MiB of experts: far more than the slack that the promise leaves, so that keeping them would be seen."""
    path = tmp_path_factory.mktemp("large")
    torch.manual_seed(0)
    config = mixtral_config(
        hidden_size=256, intermediate_size=2184, num_hidden_layers=16, num_local_experts=8, max_position_embeddings=512
    )
    return save(MixtralForCausalLM(config), path, shard="100MB")


def test_anonymous_memory_stays_within_dense_budget_two_tiles_and_150_mib(large: Path) -> None:
    """From after the imports to the peak of load and 200 decode steps; flat over the last 100."""
    numbers = plan(large)
    assert numbers.expert_nbytes > 400 * MIB
    budget = 8 * numbers.tile_nbytes
    measured = measure(large, budget)
    steps = measured["steps"]
    assert isinstance(steps, list)
    assert len(steps) == STEPS
    allowed = numbers.dense_nbytes + budget + 2 * numbers.tile_nbytes + 150 * MIB
    assert measured["grown"] < allowed, f"{measured['grown']} > {allowed}"
    last = steps[-100:]
    # The cache of keys and values grows by less than 16 layers x 2 x 128 x 2 bytes a step; nothing else may.
    assert max(last) - min(last) < 4 * MIB, "memory is not flat over the last 100 steps"


def test_stock_model_breaks_the_same_promise(large: Path) -> None:
    """The measure sees a model that keeps its experts: the promise is not met by whatever is measured."""
    numbers = plan(large)
    grown = measure(large, 0, how="stock", steps=3)["grown"]
    assert isinstance(grown, int)
    assert grown > numbers.dense_nbytes + 8 * numbers.tile_nbytes + 2 * numbers.tile_nbytes + 150 * MIB


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_cold_run_with_one_expert_reads_what_was_routed_within_2_percent(tmp_path: Path, name: str) -> None:
    """Counted where the system reads, and by what the device had to give where the file system tells."""
    torch.manual_seed(0)
    small = {"num_hidden_layers": 4, "hidden_size": 256}
    if name == "mixtral":
        save(MixtralForCausalLM(mixtral_config(**small, intermediate_size=1024)), tmp_path, shard="30MB")
    else:
        save(Qwen3MoeForCausalLM(qwen3_config(**small, moe_intermediate_size=512)), tmp_path, shard="30MB")
    numbers = plan(tmp_path)
    model = from_pretrained(tmp_path, budget=numbers.tile_nbytes)
    before = model.strideweave.statistics()
    checkpoint = Checkpoint.open(tmp_path)
    for file in {id(t.file): t.file for t in checkpoint.tensors.values()}.values():
        os.sync()
        file.drop_page_cache()
    device_before = _device_bytes()
    with model.strideweave.record_routes() as routes:
        generate(model, torch.tensor([[3, 4, 5, 6, 7]]), 20)
    read = model.strideweave.statistics().since(before).bytes_read
    # With room for one expert, an expert is found only when the step before it ended with the same one.
    last: tuple[int, int] | None = None
    routed = 0
    for tile in (tile for route in routes for tile in route):
        routed += tile != last
        last = tile
    assert read == pytest.approx(routed * numbers.tile_nbytes, rel=0.02)
    device = _device_bytes() - device_before
    if device:  # a file system in memory has no device
        assert device <= 1.02 * read + 4 * MIB
    model.strideweave.close()


def _device_bytes() -> int:
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("read_bytes"):
            return int(line.split()[1])
    return 0
