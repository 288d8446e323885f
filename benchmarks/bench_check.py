"""How long a check takes: the whole process, an ordinary configuration, the worst ten megabytes one could give it."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks import measure
from mindie_kvpool_plugin.check.pipeline import check_bytes
from mindie_kvpool_plugin.check.situation import Situation
from tests.check_examples import changed
from tests.unit.check.hostile import HOSTILE


def cpu_seconds(data):
    began = time.process_time()
    check_bytes(data, "config.json", Situation())
    return time.process_time() - began


def whole_process():
    """From the shell's prompt to the next one, beside an interpreter that does nothing."""
    example = Path(__file__).parents[1] / "conf_examples" / "qwen_one_server" / "config.json"
    calls = {
        "bare": [sys.executable, "-c", "pass"],
        "check": [sys.executable, "-m", "mindie_kvpool_plugin.cli.main", "check", str(example)],
    }
    # an installed package has its bytecode: the first call writes it
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    run = partial(subprocess.run, stdout=subprocess.DEVNULL, check=False, env=env)
    taken = measure.interleaved({name: partial(run, command) for name, command in calls.items()}, rounds=9)
    row = measure.below("the whole process, an example configuration", taken["check"], 0.25)
    return replace(row, baseline=taken["bare"] * 1e6, ratio=taken["check"] / taken["bare"])


def rows():
    ordinary = partial(cpu_seconds, json.dumps(changed({}), indent=4).encode())
    found = [whole_process()]
    found += [measure.below("an ordinary configuration", measure.interleaved({"check": ordinary})["check"], 0.05)]
    found += [
        measure.below(f"10 MB of {name.replace('_', ' ')}, CPU", cpu_seconds(data), 3.0)
        for name, data in HOSTILE.items()
    ]
    return found


if __name__ == "__main__":
    measure.main("bench_check", rows)
