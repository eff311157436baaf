"""How fast a long log is read, beside ``grep -F`` and a plain Python loop, in one run.

Scope: one core, a file in the page cache, processor time (a machine with other work on it spoils the
clock's). Each case is a log of DEBUG lines after a real start; the
readers take turns, the median of the rounds counts. ``grep -F`` looks for one text and, as a second
figure, for every literal that hwtune's markers look for; the Python loop looks for one.

Run: ``python benchmarks/log_reading.py [--megabytes 1000] [--rounds 3]``.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from hwtune.io.marker_sets import load_markers
from hwtune.io.run_evidence import collect

_START = """\
(APIServer pid=7) INFO 11-30 06:51:30 [api_utils.py:327] vLLM server version 0.32.0, serving model m
(EngineCore pid=9) INFO 11-30 06:51:37 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with \
config: model='m', dtype=torch.bfloat16, max_seq_len=8192, enable_prefix_caching=False, x=1
(Worker pid=11) INFO 11-30 06:51:47 [interface.py:890] Setting attention block size to 832 tokens \
to ensure that attention page size is >= mamba page size.
(APIServer pid=7) INFO:     Application startup complete.
"""
_PAGE = 832
_KINDS = (
    (
        "(EngineCore pid=9) DEBUG 11-30 06:52:{s:02} [v1/core/sched/scheduler.py:402] Scheduled step {n}: "
        "running=8 waiting=0 tokens=8 budget=4096 cached=0 preempted=0 finished=[]"
    ),
    (
        "(EngineCore pid=9) DEBUG 11-30 06:52:{s:02} [v1/engine/core.py:812] EngineCore loop active, {n} "
        "requests handled since the start of this server."
    ),
    (
        "(APIServer pid=7) DEBUG 11-30 06:52:{s:02} [v1/engine/async_llm.py:455] Request cmpl-{n} "
        "finished: 128 output tokens in 4 steps"
    ),
    (
        "(Worker pid=11) DEBUG 11-30 06:52:{s:02} [v1/worker/gpu_model_runner.py:1377] batch descriptor "
        "num_tokens={n} uniform=True has_lora=False"
    ),
    '(APIServer pid=7) INFO:     127.0.0.1:5{s:02}32 - "GET /health HTTP/1.1" 200 OK',
    (
        "(APIServer pid=7) INFO 11-30 06:52:{s:02} [loggers.py:259] Engine 000: Avg prompt throughput: "
        "{n}.0 tokens/s, Avg generation throughput: {n}.0 tokens/s, Running: 8 reqs, Waiting: 0 reqs, GPU KV cache usage: 15.9%"
    ),
)
_MIX = (*_KINDS[:4] * 5, *_KINDS[4:5] * 2, *_KINDS[5:])
"""Twenty lines at DEBUG, two of uvicorn, one of the engine's statistics."""
_CASES = (
    ("DEBUG lines", "", _KINDS[:4]),
    ("with requests and statistics", "", _MIX),
    ("the same in docker compose", "vllm-server-1  | ", _MIX),
    ("the same in kubectl --prefix", "[pod/vllm-0/server] ", _MIX),
)
"""What stands in the log, and what a collector puts before each line."""


def main() -> None:
    """Prints megabytes per second of each reader, and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with TemporaryDirectory() as directory:
        path = Path(directory) / "debug.log"
        for title, prefix, kinds in _CASES:
            size = _write(path, prefix, kinds, arguments.megabytes)
            _compare(title, path, size, arguments.rounds)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of this process: {peak:.0f} MiB")


def _write(path: Path, prefix: str, kinds: tuple[str, ...], megabytes: int) -> int:
    repeats = 200_000 // len(kinds)
    lines = [kind.format(s=n % 60, n=n) for n in range(repeats) for kind in kinds]
    block = "".join(f"{prefix}{line}\n" for line in lines).encode()
    with path.open("wb") as file:
        file.write("".join(f"{prefix}{line}\n" for line in _START.splitlines()).encode())
        while file.tell() < megabytes * 1_000_000:
            file.write(block)
        return file.tell()


def _compare(title: str, path: Path, size: int, rounds: int) -> None:
    texts = sorted({text for marker in load_markers().markers for text in marker.contains})
    readers: dict[str, Callable[[], None]] = {
        "hwtune": lambda: _hwtune(path),
        "plain Python loop, one text": lambda: _loop(path),
        "grep -F, one text": lambda: _grep(path, ["Setting attention block"]),
        f"grep -F, {len(texts)} texts": lambda: _grep(path, texts),
    }
    seconds: dict[str, list[float]] = {name: [] for name in readers}
    for name, read in _turns(readers, rounds):
        begun = _processor_s()
        read()
        seconds[name].append(_processor_s() - begun)
    speeds = {name: size / 1e6 / statistics.median(times) for name, times in seconds.items()}
    print(f"{title}: {size / 1e6:,.0f} MB, median of {rounds} rounds, one core")
    for name, speed in speeds.items():
        print(f"  {name:<30} {speed:7.0f} MB/s   hwtune is {speeds['hwtune'] / speed:5.2f} x")


def _processor_s() -> float:
    """Seconds of this process and of the children that ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _turns(
    readers: dict[str, Callable[[], None]], rounds: int
) -> Iterator[tuple[str, Callable[[], None]]]:
    for _ in range(rounds):
        yield from readers.items()


def _hwtune(path: Path) -> None:
    found = collect(None, log_paths=[path])
    if found.value("attention_block_size") != _PAGE or found.value("startup_complete") is not True:
        sys.exit("hwtune read the log wrongly; no speed is printed")


def _loop(path: Path) -> None:
    with path.open("rb") as file:
        hits = sum(b"Setting attention block" in line for line in file)
    if hits != 1:
        sys.exit("the plain loop read the log wrongly")


def _grep(path: Path, texts: list[str]) -> None:
    arguments = [word for text in texts for word in ("-e", text)]
    done = subprocess.run(
        ["grep", "-c", "-F", *arguments, str(path)],
        env={**os.environ, "LC_ALL": "C"},
        capture_output=True,
        check=False,
    )
    if int(done.stdout) < 1:
        sys.exit("grep read the log wrongly")


if __name__ == "__main__":
    main()
