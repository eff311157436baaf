"""The command line: ``hwtune`` and ``python -m hwtune``."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs hwtune; Ctrl-C while it is being loaded ends it as later."""
    try:
        from hwtune.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("hwtune: interrupted\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
