"""Runs what several ranks do at the same time."""

from concurrent.futures import ThreadPoolExecutor

JOIN_S = 60.0


def on_all(works):
    """What each of these returned, every one on a thread of its own; raises what the first of them raised."""
    with ThreadPoolExecutor(len(works)) as threads:
        return [future.result(JOIN_S) for future in [threads.submit(work) for work in works]]
