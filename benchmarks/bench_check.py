"""How long a check takes: an ordinary configuration, and the worst ten megabytes somebody could give it."""

import json
import time
from functools import partial

from benchmarks import measure
from mindie_kvpool_plugin.check.pipeline import check_bytes
from mindie_kvpool_plugin.check.situation import Situation
from tests.check_examples import changed
from tests.unit.check.hostile import HOSTILE


def cpu_seconds(data):
    began = time.process_time()
    check_bytes(data, "config.json", Situation())
    return time.process_time() - began


def rows():
    ordinary = partial(cpu_seconds, json.dumps(changed({}), indent=4).encode())
    found = [measure.below("an ordinary configuration", measure.interleaved({"check": ordinary})["check"], 0.05)]
    found += [
        measure.below(f"10 MB of {name.replace('_', ' ')}, CPU", cpu_seconds(data), 3.0)
        for name, data in HOSTILE.items()
    ]
    return found


if __name__ == "__main__":
    measure.main("bench_check", rows)
