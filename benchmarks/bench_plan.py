"""``mindie-kvpool plan`` on a trace of the published conversation trace's size: the whole process, 12 sizes.

``MINDIE_KVPOOL_TRACE`` names a recorded trace; without it one with as many blocks is made up.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import measure
from mindie_kvpool_plugin.simulator.trace import make_chat_trace, write_trace

SESSIONS = 6_600
TARGET_S = 20.0
SIZES = 12
ROUNDS = 5


def planned(trace):
    """Seconds, and what was planned."""
    command = [sys.executable, "-m", "mindie_kvpool_plugin", "plan", "--trace", str(trace), "--hbm-blocks", "3000"]
    began = time.perf_counter()
    done = subprocess.run([*command, "--block-size", "512", "--format", "json"], capture_output=True, check=True)
    return time.perf_counter() - began, json.loads(done.stdout)["curve"]


def rows():
    with tempfile.TemporaryDirectory() as folder:
        recorded = os.environ.get("MINDIE_KVPOOL_TRACE")
        trace = Path(recorded or Path(folder) / "trace.jsonl")
        if not recorded:
            write_trace(make_chat_trace(SESSIONS), trace)
        runs = [planned(trace) for _ in range(ROUNDS)]
    curve = runs[0][1]
    assert len(curve["points"]) == SIZES
    figure = f"{curve['requests']:,} requests, {curve['prompt_tokens']:,} prompt tokens, {SIZES} pool sizes"
    return [measure.below(figure, statistics.median(seconds for seconds, _ in runs), TARGET_S)]


if __name__ == "__main__":
    measure.main("bench_plan", rows)
