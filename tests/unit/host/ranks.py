"""One rank of an agreement in a process of its own, to be stopped and killed.

``python -m tests.unit.host.ranks <rank> <size> <port> <timeout>``; each line of standard input is a JSON
list of lengths, answered by a JSON line with the agreed ones, the seconds it took and whether it broke.
"""

import json
import sys
import time

import numpy as np

from mindie_kvpool_plugin.host.agreement import Agreement


def main(rank, size, port, timeout_s):
    agreement = Agreement(int(rank), int(size), f"tcp://127.0.0.1:{port}", "test ranks", float(timeout_s))
    sys.stdout.write("met\n")
    sys.stdout.flush()
    for line in sys.stdin:
        began = time.monotonic()
        agreed = agreement.minimum(np.array(json.loads(line), dtype=np.int64))
        sys.stdout.write(json.dumps([agreed.tolist(), time.monotonic() - began, agreement.broken]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
