"""An engine ends; ``python -m chaos.restart`` and ``chaos.endings`` measure every shape and every end."""

from chaos import endings
from chaos.restart import HITS_WITHIN_S, MIB, Shape, measure


def test_the_next_engine_hits_beside_a_store():
    """Within seconds of its start, most of what the first one computed, and not one byte wrong."""
    row = measure(Shape("store", "store", memory_bytes=64 * MIB), 60)
    assert row.is_right
    assert row.first_hit_s < HITS_WITHIN_S
    assert row.restarted < row.cold / 2
    # the fault happened: with its store killed, too, nothing was left
    assert row.store_restarted > 0.9 * row.cold


def test_an_engine_that_stops_leaves_nothing_that_the_next_one_would_be_promised():
    """By SIGTERM, as the daemon stops it: none of its memory is listed when the next one is ready."""
    row = endings.measure("stopped", 20)
    assert row.is_right
    assert (row.segments, row.recomputed) == (0, 0)
    assert row.promised > 0  # by the next one's own blocks
