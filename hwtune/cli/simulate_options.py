"""Options of ``hwtune simulate``, one name each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from hwtune.report.tables import Format

Batch = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Scenarios, one JSON object per line (- for standard input)."
    ),
]
Oracle = Annotated[
    bool, typer.Option("--oracle", help="Let the installed vLLM's own scheduler play a batch.")
]
OraclePython = Annotated[
    str | None,
    typer.Option(metavar="PYTHON", help="The Python whose vLLM plays; implies --oracle."),
]
ModelReference = Annotated[
    str | None,
    typer.Argument(
        help="Model directory, config.json or Hugging Face id; vLLM's flags follow.",
        show_default=False,
    ),
]
Profile = Annotated[
    str | None, typer.Option(help="Hardware profile: name, alias or TOML file.", show_default=False)
]
Arm = Annotated[
    Literal["baseline", "candidate"],
    typer.Option(help="Whose page: vLLM's own, or the one the profile's kernels need."),
]
Version = Annotated[
    str | None,
    typer.Option(
        help="vLLM release to play [a scenario's own; the installed one, else the newest]."
    ),
]
Npu = Annotated[
    Literal["A2", "A3", "A5", "310P"] | None,
    typer.Option(help="Which NPU, when the profile is one [A2].", show_default=False),
]
Page = Annotated[int | None, typer.Option(help="Another page than the derived one, in tokens.")]
CacheMemory = Annotated[
    str | None, typer.Option("--kv-cache-memory", help="KV cache of one rank, e.g. 8GiB.")
]
DeviceMemory = Annotated[
    str | None, typer.Option(help="Memory of one device, with --gpu-memory-utilization.")
]
WeightBytes = Annotated[str | None, typer.Option(help="Weights on one device.")]
Tier = Annotated[
    list[str] | None,
    typer.Option(help="Context range in tokens, e.g. 4-8K or 4096-8192. Repeatable."),
]
Requests = Annotated[
    int | None,
    typer.Option(help="Requests per tier [24], or the first ones of a trace [all]."),
]
OutputTokens = Annotated[
    str, typer.Option(help="Tokens per answer: 128, 64-256 (uniform) or mean:128 (geometric).")
]
OneRequest = Annotated[
    list[str] | None,
    typer.Option(
        "--request", help="PROMPT:OUTPUT[@STEP] in tokens, in place of tiers. Repeatable."
    ),
]
Arrivals = Annotated[
    Path | None,
    typer.Option(
        help="Trace of real arrivals: Azure or BurstGPT CSV, Mooncake JSON lines; - is standard input."
    ),
]
Arrival = Annotated[
    str, typer.Option(help="closed (loop at --concurrency), burst, or poisson:PER_SECOND.")
]
Concurrency = Annotated[int, typer.Option(help="Requests in flight of the closed loop.")]
SharedPrefix = Annotated[
    str | None,
    typer.Option(help="TOKENS[/GROUPS]: prompts begin alike, in so many groups [1]."),
]
Seed = Annotated[int, typer.Option(help="Decides lengths, order, prefixes and arrivals.")]
StepMs = Annotated[
    float | None, typer.Option(help="Milliseconds per step; needed when arrivals have times.")
]
TokenMs = Annotated[float | None, typer.Option(help="More milliseconds per scheduled token.")]
Accepted = Annotated[
    str | None,
    typer.Option(
        help="With speculation: accepted drafts of consecutive verifications, repeated: 3,0,1 [0]."
    ),
]
KernelRatio = Annotated[
    list[str] | None,
    typer.Option(
        help="NAME=1.3[,LOW,HIGH]: how many times faster, from ab-bench kernels. Repeatable."
    ),
]
AttentionShare = Annotated[
    str | None,
    typer.Option(help="Measured share of attention in serving time, 0.3[,LOW,HIGH]."),
]
SweepAxes = Annotated[
    list[str] | None,
    typer.Option("--sweep", help="AXIS=N,N,… over concurrency, budget, page or chunk. Repeatable."),
]
Below = Annotated[
    float, typer.Option(help="Hit rate whose loss a sweep over concurrency looks for.")
]
ShowTrace = Annotated[bool, typer.Option("--trace", help="Print every step, for small examples.")]
TimelineFile = Annotated[
    Path | None, typer.Option("--timeline", help="Write the steps as one HTML file.")
]
Plot = Annotated[Path | None, typer.Option(help="Write a sweep's hit rates as an SVG file.")]
OutputFormat = Annotated[Format, typer.Option("--format", help="How to print the answer.")]
Against = Annotated[
    Path | None,
    typer.Option(
        help="Run directory of ab-bench or serve: compare the prediction with its counters."
    ),
]
