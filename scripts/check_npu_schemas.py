"""Argument names of the torch_npu operators that hwtune calls or counts, from the wheel itself.

usage: python scripts/check_npu_schemas.py FOLDER [--write]
       python scripts/check_npu_schemas.py FOLDER --callers VLLM_ASCEND
       python scripts/check_npu_schemas.py --call
FOLDER is an unpacked torch_npu wheel (``pip download torch-npu --no-deps``, unzip): its operator
list is compared with kernels/hwtune_kernels/prefill/npu_schema.json, or written there. Nothing of it
is imported. ``--callers`` also compares the keywords that a vllm_ascend package (an unpacked wheel, a
checkout) passes to these operators. ``--call`` runs under a Python that can import torch_npu, and makes the call of
prefill/npu.py on meta tensors. Exit status 1: names differ.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from pathlib import Path

LIST = "torch_npu/csrc/aten/npu_native_functions_by_codegen.yaml"
FACTS = Path(__file__).parents[1] / "kernels/hwtune_kernels/prefill/npu_schema.json"
OPERATORS = (
    "npu_fused_infer_attention_score",
    "npu_fused_infer_attention_score.out",
    "npu_fused_infer_attention_score_v2",
    "_npu_fused_infer_attention_score_get_max_workspace",
    "npu_scatter_pa_kv_cache",
)
_NOT_IN_THE_LIST = {
    "_npu_paged_attention": [
        "query",
        "key_cache",
        "value_cache",
        "num_kv_heads",
        "num_heads",
        "scale_value",
        "block_table",
        "context_lens",
        "out",
        "workspace",
    ],
}
"""Operators of ATB, registered in C++: as ``torch.ops.atb`` showed them after an import."""


def argument_names(declaration: str) -> list[str]:
    """``f(Tensor a, *, int? b=None) -> T`` -> a, b."""
    inner = declaration[declaration.index("(") + 1 : declaration.index(") ->")]
    parts = [part.strip() for part in re.sub(r"\([^()]*\)", "", inner).split(",")]
    return [part.partition("=")[0].split()[-1] for part in parts if part and part != "*"]


def read(folder: Path) -> dict[str, list[str]]:
    """Operator -> argument names."""
    found = {}
    for line in folder.joinpath(LIST).read_text(encoding="utf-8").splitlines():
        match = re.match(r"\s*(?:- )?func: ([\w.]+)\(", line)
        if match and match[1] in OPERATORS:
            found[match[1]] = argument_names(line)
    return found | _NOT_IN_THE_LIST


def passed_by(source: str) -> dict[str, set[str]]:
    """Operator -> keywords that a source file passes to it, ``.out`` variants apart."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = ast.unparse(node.func).partition("torch_npu.")[2]
            if name in OPERATORS or name in _NOT_IN_THE_LIST:
                found.setdefault(name, set()).update(k.arg for k in node.keywords if k.arg)
    return found


def callers(folder: Path, known: dict[str, list[str]]) -> int:
    """Whether every keyword that vllm-ascend's attention passes is one the operator has."""
    path = folder / "vllm_ascend" / "attention" / "attention_v1.py"
    status = 0
    for name, keywords in sorted(passed_by(path.read_text(encoding="utf-8")).items()):
        # Python gathers the out variant's tensors under one keyword.
        unknown = keywords - set(known[name]) - ({"out"} if name.endswith(".out") else set())
        print(f"{'UNKNOWN ' + ', '.join(sorted(unknown)) if unknown else 'known'}  {name}")
        status |= bool(unknown)
    return status


def call() -> int:
    """The call on meta tensors, and a wrong name that must be refused."""
    sys.setdlopenflags(os.RTLD_LAZY | os.RTLD_GLOBAL)
    import torch
    import torch_npu
    from hwtune_kernels.prefill import npu

    query = torch.empty(6, 24, 256, dtype=torch.bfloat16, device="meta")
    cache = torch.empty(8, 128, 4, 256, dtype=torch.bfloat16, device="meta")
    table = torch.empty(2, 4, dtype=torch.int32, device="meta")
    output = torch.empty_like(query)
    npu.prefill_attention(query, cache, cache, table, [300, 5], 1.0, output, query_lens=[5, 1])
    arguments = npu.fia_arguments(query, cache, cache, table, [300, 5], 1.0, query_lens=[5, 1])
    result, _ = npu._operator()(**arguments)
    print(f"torch_npu {torch_npu.__version__}: {npu.OPERATOR} -> {tuple(result.shape)}")
    try:
        npu._operator()(**arguments, num_query_heads=24)
    except RuntimeError as error:
        print(f"a wrong name is refused: {str(error).splitlines()[0][:100]}")
        return 0
    return 1


def main(arguments: list[str]) -> int:
    if arguments == ["--call"]:
        return call()
    folder = Path(arguments[0])
    found = read(folder)
    if "--callers" in arguments:
        return callers(Path(arguments[-1]), found)
    if "--write" in arguments:
        version = next(folder.glob("torch_npu-*.dist-info")).name.split("-")[1].split(".dist")[0]
        source = f"torch_npu {version}, {LIST}; _npu_paged_attention: torch.ops.atb of the same"
        names = {name: " ".join(arguments) for name, arguments in found.items()}
        FACTS.write_text(json.dumps({"source": source, "operators": names}, indent=2) + "\n")
        return 0
    facts = json.loads(FACTS.read_text(encoding="utf-8"))["operators"]
    known = {name: names.split() for name, names in facts.items()}
    for name in sorted({*found, *known}):
        same = found.get(name) == known.get(name)
        print(f"{'same   ' if same else 'DIFFERS'}  {name}")
    return int(found != known)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
