"""Derivations and page options as tables and records. Computes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from hwtune.domain.explain import Movement
from hwtune.domain.inverse import Explanation
from hwtune.domain.lints import Lint
from hwtune.domain.page import PageDerivation, PageOption, PageOptions
from hwtune.domain.units import format_count
from hwtune.report.matrix import explanations_table
from hwtune.report.tables import Cell, Column, Format, Table, columns, render, table_records

_STEP_COLUMNS = columns(
    "name=step", "rule=rule", "inputs=inputs", "value=value", "unit=unit", "source=source"
)
_OPTION_COLUMNS = columns(
    Column(key="block_size", title="page"),
    Column(key="alignments", title="alignment"),
    Column(key="page_bytes", title="page bytes"),
    Column(key="padding_pct", title="padding", suffix=" %"),
    Column(key="extra_pct", title="vs default", suffix=" %"),
    Column(key="suits_kernels", title="suits kernels"),
)
_CAPACITY_COLUMNS = columns(
    Column(key="num_blocks", title="blocks"),
    Column(key="cache_tokens", title="cache tokens"),
    Column(key="requests", title="requests"),
)
_ROLE = (Column(key="role", title="what it is"),)


def options_table(options: PageOptions) -> Table:
    """The pages of a model on a machine, with their cost."""
    with_capacity = any(option.capacity for option in options.options)
    extra = _CAPACITY_COLUMNS if with_capacity else ()
    rows = []
    for option in options.options:
        fits = _capacity_cells(option) if with_capacity else ()
        rows.append((*_option_cells(option), *fits, _role(options, option)))
    return Table(columns=(*_OPTION_COLUMNS, *extra, *_ROLE), rows=tuple(rows))


def _option_cells(option: PageOption) -> tuple[Cell, ...]:
    page = option.page
    return (
        page.block_size_tokens,
        " ".join(map(str, option.alignments)),
        page.attention_page_bytes,
        page.padding_pct,
        option.extra_pct,
        option.suits_kernels,
    )


def _capacity_cells(option: PageOption) -> tuple[Cell, ...]:
    fits = option.capacity
    if fits is None:
        return (None, None, None)
    return (fits.num_blocks, fits.tokens, fits.concurrency)


def _role(options: PageOptions, option: PageOption) -> str:
    roles = []
    if option is options.default:
        roles.append("vLLM's default")
    if option is options.required:
        roles.append(f"what {options.profile.name}'s kernels require")
    if option is options.minimum:
        roles.append("minimum compatible")
    return ", ".join(roles)


def steps_table(page: PageDerivation, title: str = "") -> Table:
    """Every step of a derivation."""
    rows = tuple(
        (
            step.name,
            step.rule,
            ", ".join(f"{key} {_number(value)}" for key, value in step.inputs.items()),
            step.value,
            step.unit,
            step.source,
        )
        for step in page.steps
    )
    return Table(columns=_STEP_COLUMNS, rows=rows, title=title)


def _number(value: str | float) -> str:
    return format_count(value) if isinstance(value, int) else str(value)


def page_record(page: PageDerivation) -> dict[str, Any]:
    """A derivation for machines: names as vLLM has them, with units."""
    return {
        "architecture": page.model.architecture,
        "family": page.model.family,
        "hybrid": page.hybrid,
        "rule": page.rule,
        "block_size": page.block_size_tokens,
        "alignment_tokens": page.alignment_tokens,
        "attn_bytes_per_token": page.attention_bytes_per_token,
        "attention_page_bytes": page.attention_page_bytes,
        "mamba_page_bytes": page.state_bytes,
        "mamba_page_size_padded": page.mamba_page_padded_bytes,
        "padding_bytes": page.padding_bytes,
        "padding_pct": page.padding_pct,
        "mamba_block_size": page.mamba_block_size,
        "mamba_cache_mode": page.mamba_cache_mode,
        "enable_prefix_caching": page.enable_prefix_caching,
        "notes": list(page.notes),
    }


def steps_record(page: PageDerivation) -> list[dict[str, Any]]:
    """The steps for machines."""
    return [
        {
            "name": step.name,
            "rule": step.rule,
            "inputs": step.inputs,
            "value": step.value,
            "unit": step.unit,
            "source": step.source,
        }
        for step in page.steps
    ]


def option_record(option: PageOption) -> dict[str, Any]:
    """A page option for machines."""
    record = page_record(option.page)
    record["alignments"] = list(option.alignments)
    record["suits_kernels"] = option.suits_kernels
    record["extra_pct"] = option.extra_pct
    fits = option.capacity
    if fits is not None:
        record["capacity"] = {
            "memory_bytes": fits.memory_bytes,
            "num_blocks": fits.num_blocks,
            "blocks_per_request": fits.blocks_per_request,
            "request_tokens": fits.request_tokens,
            "requests": fits.concurrency,
            "cache_tokens": fits.tokens,
        }
    return record


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Everything derive-page says about one deployment."""

    options: PageOptions
    lints: tuple[Lint, ...]
    movements: tuple[Movement, ...] = ()
    equivalents: tuple[Explanation, ...] = ()
    neighbours: tuple[int, int] | None = None
    remarks: tuple[str, ...] = ()
    """Answers to questions such as why another page is not the one."""
    explain: bool = False


def show_answer(answer: Answer, kind: Format) -> str:
    """The whole answer in one of the formats."""
    if kind is Format.JSON:
        return json.dumps(_answer_record(answer), indent=2, allow_nan=False)
    options = answer.options
    table = options_table(options)
    if kind is Format.CSV:
        return render(steps_table(options.required.page) if answer.explain else table, kind)
    parts = [headline(options)]
    if options.default.page.hybrid:
        parts.append(render(table, kind))
    if answer.explain:
        parts += _explanation(answer, kind)
    parts.append("\n".join(_remarks(answer)))
    return "\n\n".join(part for part in parts if part)


def _answer_record(answer: Answer) -> dict[str, Any]:
    options = answer.options
    record: dict[str, Any] = {
        "model": options.default.page.model.source,
        "profile": options.profile.name,
        "default": option_record(options.default),
        "required": option_record(options.required),
        "minimum": option_record(options.minimum),
        "options": [option_record(option) for option in options.options],
        "lints": [asdict(lint) for lint in answer.lints],
        "remarks": list(answer.remarks),
    }
    if answer.explain:
        record["steps"] = steps_record(options.required.page)
        record["movements"] = [asdict(item) for item in answer.movements]
        record["equivalents"] = table_records(explanations_table(answer.equivalents))
    return record


def _explanation(answer: Answer, kind: Format) -> list[str]:
    hybrid = answer.options.default.page.hybrid
    page = (answer.options.required if hybrid else answer.options.default).page
    parts = [render(steps_table(page, f"How {page.block_size_tokens} comes about"), kind)]
    lines = [
        f"{item.setting} {item.value}: without it the page would be {item.block_size_without}"
        for item in answer.movements
    ]
    if answer.neighbours:
        smaller, larger = answer.neighbours
        below = f"none smaller than {page.block_size_tokens}" if not smaller else f"{smaller} below"
        lines.append(f"Pages that suit the kernels: {below}, next larger {larger}")
    parts.append("\n".join(lines))
    if answer.equivalents:
        title = (
            f"Other settings that also give {page.block_size_tokens}; the padding tells them apart"
        )
        parts.append(render(explanations_table(answer.equivalents, title), kind))
    return parts


def _remarks(answer: Answer) -> Iterator[str]:
    yield from answer.remarks
    for lint in answer.lints:
        yield f"{lint.level}: {lint.text} [{lint.name}]"
    for note in answer.options.required.page.notes:
        yield f"note: {note}"


def headline(options: PageOptions) -> str:
    """The lines above the table."""
    page = options.default.page
    lines = [
        f"{page.model.architecture} ({page.model.family}) on {options.profile.title}",
        f"Rule {page.rule}, TP {page.deployment.tensor_parallel_size}",
    ]
    if not page.hybrid or page.state_bytes is None:
        lines.append(f"Not hybrid: nothing to derive, the block size is {page.block_size_tokens}.")
        return "\n".join(lines)
    lines += [_state_line(page), _result_line(options)]
    return "\n".join(lines)


def _state_line(page: PageDerivation) -> str:
    caching = "on" if page.enable_prefix_caching else "off"
    return (
        f"State {format_count(page.state_bytes or 0)} B, attention "
        f"{format_count(page.attention_bytes_per_token)} B per token, per layer and rank; "
        f"prefix caching {caching}, mamba cache mode {page.mamba_cache_mode}"
    )


def _result_line(options: PageOptions) -> str:
    default, required = options.default.page, options.required.page
    if default.block_size_tokens == required.block_size_tokens:
        return f"Page {default.block_size_tokens}, as {options.profile.name} needs it"
    return (
        f"Page {default.block_size_tokens} by default, {required.block_size_tokens} for the kernels "
        f"of {options.profile.name}"
    )
