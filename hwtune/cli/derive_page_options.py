"""The options of derive-page, each with the sentence that --help prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hwtune.domain.units import LARGEST_SIZE
from hwtune.report.tables import Format

ModelReference = Annotated[
    str | None, typer.Argument(help="A model directory, a config.json or a Hugging Face id.")
]
Profile = Annotated[
    str | None, typer.Option(help="Hardware profile, by name or path; sm_90 if none is given.")
]
Explain = Annotated[
    bool, typer.Option("--explain", help="Every step with its source, and what moved the page.")
]
OutputFormat = Annotated[Format, typer.Option(help="How to print.")]
Version = Annotated[
    str | None, typer.Option(help="Release of the engine; else the installed or newest known.")
]
Engine = Annotated[str | None, typer.Option(help="vllm or vllm-ascend; else the profile's.")]
Alignment = Annotated[
    int | None,
    typer.Option(min=1, max=LARGEST_SIZE, help="Tokens the backend's pages are multiples of."),
]
Checkpoint = Annotated[
    int | None,
    typer.Option(
        min=1, max=LARGEST_SIZE, help="Prefill-checkpoint alignment of the state layers (0.33): 64."
    ),
]
CacheMemory = Annotated[
    str | None, typer.Option(help="KV cache of one rank, e.g. 8GiB; gives the capacity.")
]
DeviceMemory = Annotated[
    str | None,
    typer.Option(help="Memory of one device; with --gpu-memory-utilization and the weights."),
]
WeightBytes = Annotated[
    str | None, typer.Option(help="Weights of one rank; else from the safetensors index.")
]
RequestTokens = Annotated[
    int | None,
    typer.Option(min=1, max=LARGEST_SIZE, help="Length of the requests that capacity counts."),
]
PromptTokens = Annotated[
    int | None,
    typer.Option(
        min=1, max=LARGEST_SIZE, help="Length of the prompts prefix caching should serve."
    ),
]
WhyNot = Annotated[
    int | None,
    typer.Option(
        min=1, max=LARGEST_SIZE, help="Say why a page of that many tokens is not the one."
    ),
]
MatrixAxes = Annotated[
    list[str] | None,
    typer.Option(help="Axes such as 'tp=1,2 kv=auto,fp8 align=16,64'; prints one row each."),
]
Parquet = Annotated[
    Path | None, typer.Option(help="Also write the rows of --matrix to this Parquet file.")
]
Observed = Annotated[
    int | None,
    typer.Option(
        min=1, max=LARGEST_SIZE, help="A page a server printed: which deployments print it?"
    ),
]
Padding = Annotated[
    float | None, typer.Option(help="The padding in percent printed with --observed.")
]
CheckWithVllm = Annotated[
    bool, typer.Option("--check-with-vllm", help="Compare with the installed vLLM's own code.")
]
CheckPython = Annotated[
    str | None, typer.Option(help="The Python that has vLLM, for --check-with-vllm.")
]
Batch = Annotated[
    str | None,
    typer.Option(
        help="JSONL of cases (or -): one JSON answer per line, an error in place; exit status 0."
    ),
]
