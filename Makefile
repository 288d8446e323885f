# make demo | test | test-oldest | lint | schemas | chaos | soak | bench: each sets up all it needs on a bare Debian machine with Python.
.PHONY: demo test test-oldest lint schemas chaos soak bench clean

READY := .venv/.ready

$(READY): setup.py pyproject.toml .ci/setup tests/editor/package-lock.json
	.ci/setup
	touch $@

demo: $(READY)
	.venv/bin/mindie-kvpool demo --pool local_dram
	.venv/bin/mindie-kvpool demo --pool mooncake

test: $(READY)
	.venv/bin/python -m pytest

# the unit tests on the oldest Python that is supported; OLDEST says where it is if it is not found
OLDEST ?= $(shell for python in python3.10 $$HOME/.pyenv/versions/3.10.*/bin/python; do \
  $$python -c '' 2>/dev/null && echo $$python && break; done)
HOW_TO_GET_IT := "no Python 3.10 here: 'pyenv install 3.10' builds one, 'uv python install 3.10' brings one; then OLDEST=<path>"

test-oldest:
	@test -n "$(OLDEST)" || { echo $(HOW_TO_GET_IT) >&2; exit 1; }
	PYTHON=$(OLDEST) VENV=.venv-oldest .ci/setup
	.venv-oldest/bin/python -m pytest tests/unit

# .pre-commit-config.yaml runs the same before each commit, after `.venv/bin/pre-commit install`
lint: $(READY)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

# the whole schemas for editors, from the option records and schemas/source/; a test says when they are stale
schemas: $(READY)
	.venv/bin/python schemas/generate.py

# every fault in every mode on both pools, modes two by two, a real mooncake_master and its clients broken: 20 minutes
chaos: $(READY)
	.venv/bin/python -m chaos.fault_matrix
	.venv/bin/python -m chaos.mode_sweep
	.venv/bin/python -m chaos.pairs
	.venv/bin/python -m chaos.scenarios

# 200,000 small requests: memory, threads, files and shared segments stay flat
soak: $(READY)
	.venv/bin/python -m chaos.soak

# medians of interleaved runs beside their baselines: a few minutes (benchmarks/README.md)
BENCHMARKS := check start keys addresses lookup reload_spill step replay

bench: $(READY)
	@for name in $(BENCHMARKS); do .venv/bin/python -m benchmarks.bench_$$name || exit 1; done

clean:
	rm -rf .venv .venv-oldest build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
