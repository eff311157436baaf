"""``python -m hwtune_kernels.static``: one request on standard input, one answer on the last line.

A process of its own, because a target can be set only once per Triton and Triton must not have been
told to interpret.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

MARK = "hwtune-static: "


def main() -> None:
    """Answers ``{"targets": [...], "shape": {...}, "tunings": {target: {...}}}``, or for a sweep
    ``{"targets": [one], "shape": {...}, "implementation": "...", "sweep": [{...}, ...]}``."""
    request: dict[str, Any] = json.load(sys.stdin)
    os.environ.pop("TRITON_INTERPRET", None)
    # Triton 3.10 turns this off by default; what is counted here is with it.
    os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"
    answer = _answer(request)
    sys.stdout.write(f"\n{MARK}{json.dumps(answer)}\n")


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        import triton

        from hwtune_kernels.static import report
    except ImportError as error:
        return {"missing": error.name or str(error)}
    from hwtune_kernels.generic import GenericUnavailableError

    shape = report.Shape(**request["shape"])
    found: list[dict[str, Any]] = []
    try:
        for target in request["targets"]:
            report.check_target(target)
            if "sweep" in request:
                asked = request["implementation"], request["sweep"]
                made = list(report.sweep(target, shape, *asked))
                return {
                    "triton": triton.__version__,
                    "swept": [row if isinstance(row, str) else report.as_json(row) for row in made],
                    "notes": {target: report.target_note(target)},
                }
            tunings = request["tunings"].get(target, {})
            found += [report.as_json(row) for row in report.rows(target, shape, tunings)]
    except GenericUnavailableError as error:
        return {"no_baseline": str(error)}
    except ValueError as error:
        return {"refused": str(error)}
    notes = {name: report.target_note(name) for name in request["targets"]}
    return {"triton": triton.__version__, "rows": found, "notes": notes}


if __name__ == "__main__":
    main()
