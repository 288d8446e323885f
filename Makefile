# make demo | test | lint | bench: each sets up all it needs on a bare Debian machine with Python.
.PHONY: demo test lint bench clean

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

BENCHMARKS := keys addresses lookup reload_spill step replay

bench: $(READY)
	@for name in $(BENCHMARKS); do .venv/bin/python -m benchmarks.bench_$$name || exit 1; done

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
