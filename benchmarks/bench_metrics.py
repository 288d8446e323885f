"""What observing costs: the same steps while metrics are served and scraped every second, and while nobody looks.

Counting itself is always on.  A scrape runs on another thread of the process and shares the interpreter with the step,
so its whole time counts; Prometheus asks every 15 s by default.
"""

import contextlib
import threading
import time
import urllib.request

import numpy as np

from benchmarks import measure, parts
from benchmarks.bench_step import BATCH, LAYERS, PROMPT_BLOCKS, PROMPT_TOKENS, SEGMENTS, decoding
from mindie_kvpool_plugin.observability import observer
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.observability.identity import Identity, Settings
from mindie_kvpool_plugin.observability.tally import Tally

STEP_S = 0.01  # a short decode step of a large model
SHARE = 0.01  # of it, at most
SCRAPE_INTERVAL_S = 15.0


@contextlib.contextmanager
def served(counters=None):
    """A rank whose metrics are served: its address."""
    part = observer.observe(Identity("worker"), counters or Counters(), Settings(metrics="http", port=19420))
    try:
        while (address := observer.process_facts()["metrics_address"]) is None:
            time.sleep(0.01)
        yield address
    finally:
        part.forget()


def scrape(address):
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        return answer.read()


@contextlib.contextmanager
def scraped():
    """Somebody asks every second."""
    done = threading.Event()

    def ask(address):
        while not done.wait(1.0):
            scrape(address)

    with served() as address:
        asking = threading.Thread(target=ask, args=(address,))
        asking.start()
        try:
            yield
        finally:
            done.set()
            asking.join()


def watched(figure, call, inner):
    """Rounds while somebody looks and rounds while nobody does, turn about."""
    taken = {"on": [], "off": []}
    for _ in range(5):
        for name, around in (("on", scraped), ("off", contextlib.nullcontext)):
            with around():
                taken[name].append(measure.interleaved({"call": call}, rounds=21, inner=inner)["call"])
    on, off = (sorted(taken[name])[2] for name in ("on", "off"))
    share = max(0.0, on - off) / STEP_S
    return measure.Row(figure, on * 1e6, "us", off * 1e6, share, f"<= {SHARE:g} of 10 ms more", share <= SHARE)


def part_of(figure, value_s, whole_s):
    share = value_s / whole_s
    return measure.Row(figure, value_s * 1e6, "us", whole_s * 1e6, share, f"<= {SHARE:g} x", share <= SHARE)


def rows():
    found = []
    with decoding(False, 4096) as (step, _):
        found.append(watched(f"decode step, batch {BATCH}: served and scraped every second, against neither", step, 50))
    contexts = parts.Contexts(2, PROMPT_TOKENS + 64)
    made = parts.plugin(
        parts.NoMovePool(), contexts, parts.cache(LAYERS, SEGMENTS, 2 * PROMPT_BLOCKS), async_write=True
    )
    ids, number = np.arange(PROMPT_BLOCKS + 1), iter(range(1 << 30))

    def hit():
        made._worker.walks.directory.forget()
        parts.prefill(made, next(number), 1, contexts, ids, PROMPT_TOKENS + 64, promised=PROMPT_BLOCKS)

    found.append(watched("32k-token pool hit, whole prefill hook: the same", hit, 3))
    made.close()
    tally, blocks = Tally(Counters(), 128), np.full(8, PROMPT_BLOCKS)
    counted_s = measure.interleaved({"tally": lambda: tally.loaded(blocks, blocks, blocks)}, inner=200)["tally"]
    found.append(part_of("counting a prefill step with 8 hits, of a step of 10 ms", counted_s, STEP_S))
    with served() as address:
        scrape_s = measure.interleaved({"scrape": lambda: scrape(address)}, rounds=41)["scrape"]
    found.append(part_of("one scrape, of the 15 s between two", scrape_s, SCRAPE_INTERVAL_S))
    return found


if __name__ == "__main__":
    measure.main("bench_metrics", rows)
