"""Start-up: seconds until the weights have a name, for 200 shards, cold, warm and for the second rank of a machine."""

import logging
import os
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks import measure
from mindie_kvpool_plugin.host import weights

SHARDS = 200
SHARD_BYTES = 3_500_000_000  # 700 GB in all, as DeepSeek-R1 in bf16; sparse, with real bytes wherever we look
ROUNDS = 7
TARGET_S = 2.0


def make_model(directory):
    (directory / "config.json").write_text('{"model_type": "deepseek_v3"}')
    samples = weights.MAX_SAMPLES // SHARDS
    for number in range(SHARDS):
        with (directory / f"model-{number:05}-of-{SHARDS:05}.safetensors").open("wb") as file:
            file.write(os.urandom(weights.HEAD_BYTES))
            for sample in range(1, samples + 1):
                file.seek((SHARD_BYTES - weights.SAMPLE_BYTES) * sample // samples)
                file.write(os.urandom(weights.SAMPLE_BYTES))
    os.sync()


def forget_pages(directory):
    """Out of the page cache, so that the next read goes to the disk."""
    for path in directory.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def forget_shared(directory):
    for path in directory.iterdir():
        path.unlink()


def timed(directory):
    began = time.perf_counter()
    weights.name_of(str(directory))
    return time.perf_counter() - began


def rows():
    logging.getLogger("mindie_kvpool").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(dir=".") as model, tempfile.TemporaryDirectory() as shared:
        tempfile.tempdir = shared
        directory = Path(model).resolve()
        make_model(directory)
        taken = {"cold": [], "warm": [], "shared": []}
        for _ in range(ROUNDS):
            forget_shared(Path(shared))
            forget_pages(directory)
            taken["cold"].append(timed(directory))
            taken["shared"].append(timed(directory))
            forget_shared(Path(shared))
            taken["warm"].append(timed(directory))
        tempfile.tempdir = None
    median = {name: statistics.median(values) for name, values in taken.items()}
    return [
        measure.below(f"{SHARDS} shards of 3.5 GB, first rank, page cache cold", median["cold"], TARGET_S),
        measure.below("- page cache warm", median["warm"], TARGET_S),
        measure.below("- another rank of the machine", median["shared"], TARGET_S),
    ]


if __name__ == "__main__":
    measure.main("bench_start", rows)
