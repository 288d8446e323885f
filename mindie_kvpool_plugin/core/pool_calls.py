"""Pool calls that cannot hurt: a backend that breaks its contract is a pool that failed.

Backends neither raise nor answer fewer keys than they were asked.  The walks do not bet the engine on
it: on one rank of several, an exception would also leave the others waiting for its agreement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mindie_kvpool_plugin.core.block_directory import Mask
from mindie_kvpool_plugin.observability.log import RateLimited

_log = RateLimited()


def answers(count: int, call: Callable[[], Sequence[bool]]) -> Mask:
    """One bool per key: the call's, or all false when it raised or answered another number of keys."""
    try:
        found = np.array(call(), dtype=np.bool_)
    except Exception:  # noqa: BLE001 - see the module's docstring
        _log.warning("a pool backend raised; the call counts as failed", exc_info=True)
        return np.zeros(count, dtype=np.bool_)
    return found if found.shape == (count,) else np.zeros(count, dtype=np.bool_)
