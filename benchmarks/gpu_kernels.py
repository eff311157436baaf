"""Our Triton kernels against vLLM's generic ones on the GPU that is here; under ten minutes.

Scope: the kernel alone, as graph replay, with L2 warm and cold. Prints Markdown tables to commit
with date and device: decode at KV 8192, 16384 and 32768 with batch 1 and 16, prefill at q 1024 and
4096. It has run on no GPU yet; the same calls run in Triton's interpreter in the tests. Run it where
vLLM, torch and Triton are:

    python benchmarks/gpu_kernels.py [--profile NAME]
"""

from __future__ import annotations

import argparse
import subprocess
import sys

DECODE = ("--query", "1", "--batch", "1", "--batch", "16")
LENGTHS = ("8192", "16384", "32768")
PREFILL = ("--query", "1024", "--query", "4096", "--context", "8192", "--context", "16384")


def main() -> int:
    """Both tables; the exit status is the worse of the two."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", help="Launch constants and bandwidth, e.g. sm_90.")
    parser.add_argument("--page", default="832")
    arguments = parser.parse_args()
    profile = () if arguments.profile is None else ("--profile", arguments.profile)
    shared = ("--shape", "24/4/256", "--page", arguments.page, "--format", "markdown", *profile)
    contexts = [word for length in LENGTHS for word in ("--context", length)]
    decode = _table("--kernel", "decode.triton", *DECODE, *contexts, *shared)
    return max(decode, _table("--kernel", "prefill.triton", *PREFILL, *shared))


def _table(*options: str) -> int:
    command = [sys.executable, "-m", "hwtune", "ab-bench", "kernels", *options]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
