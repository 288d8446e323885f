"""The benchmarks are run by hand: what they are made of has to fit the package all the same."""

import pytest

from benchmarks import bench_step, parts


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_step_benchmark_measures_a_plugin_that_works(monkeypatch, is_async):
    """A step of it goes through the hooks, and nothing unexpected is caught there."""
    made, build = [], parts.plugin
    monkeypatch.setattr(parts, "plugin", lambda *args, **more: made.append(build(*args, **more)) or made[-1])
    with bench_step.decoding(is_async, 4096) as (step, _):
        step()
        assert [len(plugin._worker.sequences) for plugin in made] == [bench_step.BATCH]
        assert [plugin.counters.hook_errors for plugin in made] == [0]
