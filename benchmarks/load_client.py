"""How true the load client is, at 1, 32, 256 and 1000 streams, against the mock.

    python benchmarks/load_client.py                # like `hwtune ab-bench self-test`
    python benchmarks/load_client.py --isolated     # mock and client on a core each (root)

With ``--isolated`` the mock runs on core 0 and the client on core 1, both with real-time priority,
so that other work on the machine does not show. Then three rounds are run and all are printed.
"""

from __future__ import annotations

import argparse
import os
import sys

from hwtune.adapters.load.self_test import STREAMS, check_speed
from hwtune.report.self_test import to_table

_MOCK_PREFIX = ("chrt", "-f", "60", "taskset", "-c", "0")


def main() -> None:
    """Prints one table per round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isolated", action="store_true")
    parser.add_argument("--streams", type=int, action="append")
    options = parser.parse_args()
    if options.isolated:
        os.sched_setaffinity(0, {1})
    prefix = _MOCK_PREFIX if options.isolated else ()
    for _ in range(3 if options.isolated else 1):
        checks = list(check_speed(options.streams or STREAMS, prefix))
        sys.stdout.write(to_table(checks) + "\n")


if __name__ == "__main__":
    main()
