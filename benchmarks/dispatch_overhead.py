"""What hwtune's dispatch costs a forward call that no kernel takes, beside a bare method call.

Scope: Python overhead of one attention call. Run: ``python benchmarks/dispatch_overhead.py``.
"""

from __future__ import annotations

import timeit
from pathlib import Path
from tempfile import TemporaryDirectory

from hwtune.adapters.vllm.dispatch import bind_layer
from hwtune.domain.kernel import CallShape, LayerTraits
from hwtune.io.counters import CounterFile
from hwtune.io.profiles import load_profile

CALLS = 200_000


def main() -> None:
    """Prints microseconds per call, both in one run."""
    layer = LayerTraits(
        num_heads=24,
        num_kv_heads=4,
        head_size=256,
        dtype="bfloat16",
        kv_cache_dtype="auto",
        block_size=832,
    )
    with TemporaryDirectory() as directory:
        counters = CounterFile(Path(directory), "benchmark")
        kernels = load_profile("cpu").kernels
        dispatcher = bind_layer(kernels, layer, lambda spec: print, counters)

        def refused() -> None:
            call = CallShape(num_sequences=8, num_tokens=8, max_query_len=1, context_len=9000)
            dispatcher.select(call)

        def bare() -> None:
            pass

        ours = timeit.timeit(refused, number=CALLS) / CALLS * 1e6
        nothing = timeit.timeit(bare, number=CALLS) / CALLS * 1e6
    print(f"select, {len(kernels)} kernels, all refused and counted: {ours:.2f} us per call")
    print(f"an empty Python call: {nothing:.3f} us; ratio {ours / nothing:.0f}x")


if __name__ == "__main__":
    main()
