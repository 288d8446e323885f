"""Any damage to a configuration: ``--fix`` loses no valid value, adds no error, and has nothing left to do.

A short run here; the full one is ``python -m tests.fuzz.damage 200000``.
"""

import os

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.damage import examine, slipped
from tests.fuzz.test_fuzz_check import SEEDS, damaged

EXAMPLES = int(os.environ.get("KVPOOL_FUZZ_EXAMPLES", "300"))
lasting = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=EXAMPLES <= 300
)  # fmt: skip


@lasting
@given(rng=st.randoms(use_true_random=False))
def test_fix_loses_nothing_of_a_file_with_slips(rng):
    """Nothing valid is lost, no error is added, and twice is the same as once."""
    examine(slipped(rng))


@lasting
@given(data=damaged(SEEDS))
def test_fix_loses_nothing_of_a_file_with_any_bytes(data):
    """The same for what no person would type."""
    examine(data)
