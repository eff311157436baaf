"""``python -m hwtune``: the same command line, for where scripts are not on the path."""

from hwtune.cli import main

main()
