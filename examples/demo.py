"""The main job on the embedded example: derive, serve both arms, prove, measure.

Run by ``make demo``. It only calls the ``hwtune`` command line, the way a user would, and stops
at the first step that does not end as it should.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
MODEL = HERE / "tiny-qwen3.5"
PROFILE = MODEL / "every-shape.toml"
RUNS = Path("hwtune-runs")
VLLM_FLAGS = (
    *("--dtype", "bfloat16", "--enforce-eager", "--max-model-len", "8192"),
    "--no-enable-prefix-caching",
)
AB_FLAGS = (
    *("--tier", "1024-1536", "--tier", "2048-3072", "--tier", "4096-6144"),
    *("--blocks", "8", "--prompts-per-tier", "16", "--output-tokens", "24"),
)


def main() -> int:
    """Runs the steps; returns the exit status of the first that failed."""
    # One GiB of KV cache each: two servers fit into a small machine.
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    run_dir = RUNS / time.strftime("demo-%Y%m%d-%H%M%S")
    arms = {arm: run_dir / arm for arm in ("baseline", "candidate")}
    status = hwtune(
        "1. Derive the page",
        *("derive-page", str(MODEL), "--profile", str(PROFILE), "--kv-cache-memory", "1GiB"),
        *VLLM_FLAGS,
    )
    for arm, directory in arms.items():
        status = status or hwtune(
            f"2. Serve the {arm} (real vLLM on the CPU, about a minute)",
            *("serve", str(MODEL), "--profile", str(PROFILE), "--arm", arm, "--quiet"),
            *("--stop-when-verified", "--run-dir", str(directory), "--port", "8187"),
            *VLLM_FLAGS,
        )
    for arm, directory in arms.items():
        status = status or hwtune(
            f"3. Prove what the {arm} ran", "verify-markers", "--run-dir", str(directory)
        )
    status = status or hwtune(
        "4. Measure (both servers up, blocks interleaved, a few minutes)",
        *("ab-bench", "serving", str(MODEL), "--profile", str(PROFILE), "--port", "8188"),
        *("--run-dir", str(run_dir / "ab"), *AB_FLAGS, *VLLM_FLAGS),
        # The answer "slower" or "no difference" is a result, not a failure of the demo.
        accepted=(0, 1),
    )
    print(f"\nEverything is in {run_dir}")
    return status


def hwtune(title: str, *arguments: str, accepted: tuple[int, ...] = (0,)) -> int:
    """Runs one hwtune command below a title; 0 when its exit status is an accepted one."""
    print(f"\n==> {title}\n$ hwtune {' '.join(arguments)}", flush=True)
    status = subprocess.run([sys.executable, "-m", "hwtune", *arguments], check=False).returncode
    if status in accepted:
        return 0
    print(f"demo: hwtune {arguments[0]} ended with status {status}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
