"""Which blocks the host writes outside a batch, as it names them."""

import numpy as np
import pytest

from mindie_kvpool_plugin.host.block_writes import counts_by_source


@pytest.mark.parametrize(
    ("table", "sources", "expected"),
    [
        pytest.param([3, 5, 6], [(1, [8, 9], [3, 5])], [2], id="one-rank-and-the-first-tokens-block"),
        pytest.param([3, 5, 6], [(1, [8], [7]), (2, [1, 2, 4], [3, 5, 6])], [3], id="one-of-two-nodes"),
        pytest.param([3, 5, 6, 7], [(1, [8, 9], [2, 3, 5]), (2, [1, 2], [6, 7])], [2, 2], id="two-ranks"),
        pytest.param([3, 5, 6], [(1, [8, 9], [3, 6]), (2, [1], [5])], [], id="not-rank-after-rank"),
        pytest.param([3, 5, 6], [(1, [8, 9], [5, 6])], [], id="not-from-the-first-on"),
        pytest.param([3, 5, 6], [(1, [8, 9], [3, 5]), (2, [1, 2], [5, 6])], [], id="one-block-from-both"),
        pytest.param([3, 5], [(1, [8, 9], [3, 5]), (2, [1, 2], [3, 7])], [2], id="shared-with-another-sequence"),
    ],
)
def test_counts_by_source_are_the_blocks_of_each_rank_in_the_order_of_the_table(table, sources, expected):
    """Nothing where that order is not known."""
    assert counts_by_source(np.array(table), sources) == expected
