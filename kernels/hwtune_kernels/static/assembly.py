"""Reading machine code as text: NVIDIA's SASS and AMD's assembly. Imports neither torch nor Triton.

The loop that counts is the most deeply nested one that holds a matrix instruction; of several, the
first, because what a pipeliner appends comes after the loop it copies.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LABEL = re.compile(r"^(\.?L\w+):")
_SASS_CONTROL = re.compile(r"^[0-9a-f-]+:[^\t]*\t")
"""What Triton prints before each SASS instruction: barriers, yield and stall cycles."""
_BRANCH = re.compile(r"\b(?:BRA\S*|s_c?branch\w*)\b.*?(\.?LBB\w+)")
_MATRIX = re.compile(r"\b(?:HMMA|HGMMA|v_mfma|v_wmma)")
_WIDE_LOAD = re.compile(
    r"\bLDG\S*\.128\b|\bLDGSTS\S*\.128\b|\bUTMALDG|\b(?:global|buffer|flat)_load_(?:dwordx4|b128)\b"
)
_ANY_LOAD = re.compile(
    r"\bLDG\b|\bLDGSTS\b|\bUTMALDG|\b(?:global|buffer|flat)_load_(?!lds)\w+|\b(?:global|buffer)_load_lds"
)
_DIVISION = re.compile(
    r"\bU?IMAD\.HI\b|\bMUFU\.RCP\b|\bI2F\S*|\b[vs]_mul_hi_[ui]32\w*|\bv_rcp_iflag_f32\w*"
)
"""A division by a constant is a high multiplication; by a variable, a reciprocal of a converted
integer. Attention has no other use for either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """One loop of machine code."""

    instructions: int
    matrix: int
    wide_loads: int
    """Global loads of 16 bytes per lane (or by the copy engine)."""
    narrow_loads: int
    """Global loads of less, block-table entries among them."""
    divisions: int
    """Instructions that only an integer division needs."""
    depth: int
    """Loops around it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a kernel asks of a processor."""

    registers: int
    """Vector registers per lane, AMD's accumulation registers included."""
    spill_bytes: int
    """Bytes per lane that live in memory because registers ran out; scalar spills count 4 each."""
    stack_bytes: int


def hot_loop(listing: str) -> Loop | None:
    """The innermost loop around matrix instructions; None where there is none."""
    instructions, labels = _parse(listing)
    spans = _loops(instructions, labels)
    hot = [span for span in spans if _count(_MATRIX, instructions[slice(*span)])]
    if not hot:
        return None
    start, stop = min(hot, key=lambda span: (-_depth(span, spans), span[0]))
    body = instructions[start:stop]
    wide = _count(_WIDE_LOAD, body)
    return Loop(
        instructions=len(body),
        matrix=_count(_MATRIX, body),
        wide_loads=wide,
        narrow_loads=_count(_ANY_LOAD, body) - wide,
        divisions=_count(_DIVISION, body),
        depth=_depth((start, stop), spans),
    )


def _parse(listing: str) -> tuple[list[str], dict[str, int]]:
    """Instructions in order, and the index at which each label stands."""
    instructions: list[str] = []
    labels: dict[str, int] = {}
    for line in listing.splitlines():
        text = _SASS_CONTROL.sub("", line).partition(";")[0].strip()
        label = _LABEL.match(text)
        if label:
            labels[label[1]] = len(instructions)
        elif text and not text.startswith((".", "//")) and not text.endswith(":"):
            instructions.append(text)
    return instructions, labels


def _loops(instructions: list[str], labels: dict[str, int]) -> list[tuple[int, int]]:
    spans = []
    for index, instruction in enumerate(instructions):
        branch = _BRANCH.search(instruction)
        target = labels.get(branch[1]) if branch else None
        if target is not None and target <= index:
            spans.append((target, index + 1))
    return spans


def _depth(span: tuple[int, int], spans: list[tuple[int, int]]) -> int:
    around = [o for o in spans if o != span and o[0] <= span[0] and span[1] <= o[1]]
    return len(around)


def _count(pattern: re.Pattern[str], instructions: list[str]) -> int:
    return sum(1 for instruction in instructions if pattern.search(instruction))


def amd_resources(listing: str) -> Resources:
    """From the metadata at the end of AMD's assembly.

    Raises:
        ValueError: the metadata is not there.
    """

    def value(name: str) -> int:
        found = re.search(rf"^\s*-?\s*\.{name}:\s*(\d+)\s*$", listing, re.MULTILINE)
        if found is None:
            message = f"no .{name} in the assembly"
            raise ValueError(message)
        return int(found[1])

    # vgpr_count holds the accumulation registers too, where the two share one file.
    spilled = value("vgpr_spill_count") + value("sgpr_spill_count")
    return Resources(
        registers=value("vgpr_count"),
        spill_bytes=4 * spilled,
        stack_bytes=value("private_segment_fixed_size"),
    )


def nvidia_resources(ptxas_log: str) -> Resources:
    """From what ``ptxas -v`` prints.

    Raises:
        ValueError: it printed no numbers.
    """
    used = re.search(r"Used (\d+) registers", ptxas_log)
    memory = re.search(
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", ptxas_log
    )
    if used is None or memory is None:
        message = f"ptxas printed no registers: {ptxas_log[:200]!r}"
        raise ValueError(message)
    return Resources(
        registers=int(used[1]),
        spill_bytes=int(memory[2]) + int(memory[3]),
        stack_bytes=int(memory[1]),
    )
