# make demo | test | lint | schemas | chaos | soak | bench: each sets up all it needs on a bare Debian machine with Python.
.PHONY: demo test lint schemas chaos soak bench clean

READY := .venv/.ready

$(READY): setup.py pyproject.toml .ci/setup
	.ci/setup
	touch $@

demo: $(READY)
	.venv/bin/mindie-kvpool demo --pool local_dram
	.venv/bin/mindie-kvpool demo --pool mooncake

test: $(READY)
	.venv/bin/python -m pytest

lint: $(READY)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

# the whole schemas for editors, from the option records and schemas/source/; a test says when they are stale
schemas: $(READY)
	.venv/bin/python schemas/generate.py

# every fault in every mode on both pools, then a real mooncake_master and its clients broken: about ten minutes
chaos: $(READY)
	.venv/bin/python -m chaos.fault_matrix
	.venv/bin/python -m chaos.mode_sweep
	.venv/bin/python -m chaos.scenarios

# 200,000 small requests: memory, threads, files and shared segments stay flat
soak: $(READY)
	.venv/bin/python -m chaos.soak

# medians of interleaved runs beside their baselines: a few minutes (benchmarks/README.md)
BENCHMARKS := start keys addresses lookup reload_spill step replay

bench: $(READY)
	@for name in $(BENCHMARKS); do .venv/bin/python -m benchmarks.bench_$$name || exit 1; done

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
