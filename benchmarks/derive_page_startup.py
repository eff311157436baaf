"""How long derive-page takes from process start to printed table, beside what it is compared with.

Prints medians and the ratio to an empty Python process, all measured in one run and interleaved.
With an interpreter that has vLLM (``--vllm-python``), also the time that importing vLLM's
configuration alone takes there: the least that a live check costs.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODEL = str(ROOT / "examples" / "tiny-qwen3.5")
DERIVE = [sys.executable, "-m", "hwtune", "derive-page", MODEL, "--profile", "cpu"]
AXES = "tp=1 kv=auto,fp8 ssm=auto,bfloat16 prefix-caching=off,on spec=" + ",".join(
    map(str, range(25))
)


def _seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--vllm-python", help="an interpreter that can import vllm")
    options = parser.parse_args()
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "derive-page": DERIVE,
        "derive-page --explain": [*DERIVE, "--explain"],
        "derive-page --matrix, 1,000 cells": [
            *DERIVE,
            "--matrix",
            f"{AXES} align=16,32,64,128,256",
        ],
    }
    samples: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(options.rounds):
        for name, command in commands.items():
            samples[name].append(_seconds(command))
    if options.vllm_python:
        check = [options.vllm_python, "-c", "import vllm.config"]
        samples["import vllm.config"] = [_seconds(check)]
    empty = statistics.median(samples["python -c pass"])
    print(f"{'what':36} {'median':>9} {'x empty process':>16}")
    for name, values in samples.items():
        median = statistics.median(values)
        print(f"{name:36} {median:8.3f}s {median / empty:15.1f}x")


if __name__ == "__main__":
    main()
