"""Switches a real host reads from the environment; the engine sets them for its run."""

from types import SimpleNamespace

ENV = SimpleNamespace(async_inference=False, model_runner_exp=False)
