"""One rank of an agreement in a process of its own, to be stopped and killed.

``python -m tests.unit.host.ranks <rank> <size> <place> <timeout>``; each line of standard input is a JSON
list of lengths, answered by a JSON line with the agreed ones, the seconds it took and whether it broke.  More
arguments, as the daemon gives them, are left to the agreement; MEETING_TIMEOUT_S in the environment is how long
ranks wait for each other.
"""

import json
import os
import sys
import time

import numpy as np

from mindie_kvpool_plugin.errors import HostCompatError
from mindie_kvpool_plugin.host import agreement as ranks_agreement


def main(rank, size, place, timeout_s, *_):
    if "MEETING_TIMEOUT_S" in os.environ:
        ranks_agreement.MEETING_TIMEOUT_S = float(os.environ["MEETING_TIMEOUT_S"])
    try:
        agreement = ranks_agreement.Agreement(int(rank), int(size), place, "test ranks", float(timeout_s))
    except HostCompatError as error:
        sys.stdout.write(f"{error}\n")
        return
    sys.stdout.write("met\n")
    sys.stdout.flush()
    for line in sys.stdin:
        began = time.monotonic()
        agreed = agreement.minimum(np.array(json.loads(line), dtype=np.int64))
        sys.stdout.write(json.dumps([agreed.tolist(), time.monotonic() - began, agreement.broken]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
