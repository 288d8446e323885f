# make demo | test | test-pythons | test-oldest-torch | npu-test | lint | schemas | chaos | soak | bench | dist: each sets up all it needs on a bare Debian machine
.PHONY: demo test test-pythons test-oldest-torch lint schemas chaos soak bench dist try-dist npu-test clean

READY := .venv/.ready
# one more than there are cores: many tests wait for a master, a lease or a process
JOBS ?= $(shell echo $$(($$(nproc) + 1)))

$(READY): setup.py mindie_kvpool_plugin/_native.c pyproject.toml .ci/setup tests/editor/package-lock.json
	.ci/setup
	touch $@

demo: $(READY)
	.venv/bin/mindie-kvpool demo --pool local_dram
	.venv/bin/mindie-kvpool demo --pool mooncake

test: $(READY)
	.venv/bin/python -m pytest -n $(JOBS) --dist loadfile

# the unit tests on the other Pythons that are supported, each in a .venv-<version>; one that is not on this machine is named
PYTHONS ?= 3.10 3.12 3.13

test-pythons: $(addprefix .venv-,$(PYTHONS))

# $(call try_on,version of Python,folder of its packages,tests)
define try_on
@python=$$(command -v python$(1) || ls -d $$HOME/.pyenv/versions/$(1).*/bin/python 2>/dev/null | tail -1); \
	$${python:-false} -c '' 2>/dev/null || python=$$(ls -d $$HOME/.pyenv/versions/$(1).*/bin/python 2>/dev/null | tail -1); \
	test -n "$$python" || { echo "NOT RUN: no Python $(1) here; 'uv python install $(1)' or 'pyenv install $(1)' brings one"; exit 0; }; \
	PYTHON=$$python VENV=$(2) .ci/setup && $(2)/bin/python -m pytest -n $(JOBS) --dist loadfile $(3)
endef

.venv-%: FORCE
	$(call try_on,$*,$@,tests/unit)

# what touches torch, under the oldest one of the host's images, on Python 3.10; on x86 it brings 2 GB of CUDA packages
OLDEST_TORCH ?= torch==2.1.0 numpy<2
TESTS_OF_TORCH := tests/unit/host tests/unit/simulator tests/walks/test_pool_runs.py tests/walks/test_data_parallel.py \
	tests/walks/test_servers.py

test-oldest-torch: export TORCH = $(OLDEST_TORCH)
test-oldest-torch:
	$(call try_on,3.10,.venv-torch,$(TESTS_OF_TORCH))

FORCE:

# tests/npu under the real torch_npu, on an emulator of the CANN runtime: EMULATOR=<folder of its source>
npu-test:
	.ci/npu-test

# .pre-commit-config.yaml runs the same before each commit, after `.venv/bin/pre-commit install`
lint: $(READY)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

# the schemas for editors, from the option records and schemas/source/, and the pages of metrics; a test says when they are stale
schemas: $(READY)
	.venv/bin/python schemas/generate.py
	.venv/bin/python schemas/metrics_pages.py
	.venv/bin/python schemas/options_pages.py

# every fault in every mode on both pools, modes two by two, a real mooncake_master and its clients broken: 25 minutes
chaos: $(READY)
	.venv/bin/python -m chaos.fault_matrix
	.venv/bin/python -m chaos.mode_sweep
	.venv/bin/python -m chaos.pairs
	.venv/bin/python -m chaos.scenarios
	.venv/bin/python -m chaos.restart
	.venv/bin/python -m chaos.endings

# 200,000 small requests: memory, threads, files and shared segments stay flat
soak: $(READY)
	.venv/bin/python -m chaos.soak

# medians of interleaved runs beside their baselines: a few minutes (benchmarks/README.md)
BENCHMARKS := check start keys addresses lookup reload_spill device_copies right_of_way step metrics replay plan gain

bench: $(READY)
	@for name in $(BENCHMARKS); do .venv/bin/python -m benchmarks.bench_$$name || exit 1; done

# sdist, wheels and their checksums from the last commit, the same bytes each time, in dist/; PYTHON=... builds with another one
dist: $(READY)
	.ci/dist

# a machine's first minutes with what `make dist` made: a fresh environment, the wheel, both demos
try-dist: dist
	.ci/try-dist

clean:
	rm -rf .venv .venv-* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
