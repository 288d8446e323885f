# make demo | test | lint: each sets up all it needs on a bare Debian machine with Python.
.PHONY: demo test lint clean

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

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
