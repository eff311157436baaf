"""Two servers side by side: what differs, and whether an A/B between them is fair."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hwtune.domain.backend_names import same_backend
from hwtune.domain.check_kernels import tallies
from hwtune.domain.check_rules import show_value
from hwtune.domain.engine_config import engine_fields
from hwtune.domain.environment import environment_conditions
from hwtune.domain.evidence import Evidence, Place
from hwtune.domain.server_flags import given_flags

PAGE_FACTS = (
    "attention_block_size",
    "padding_pct",
    "manager_block_size",
    "manager_block_sizes",
    "scheduler_block_size",
    "mamba_block_size",
    "hash_block_size",
    "kernel_block_sizes",
    "requested_block_size",
    "user_specified_block_size",
    "kv_cache_tokens",
    "max_concurrency",
    "num_gpu_blocks",
    "kernels",
    "flag block_size",
)
"""What another page is bound to change; the usual declaration of an A/B of pages."""
_NO_CONDITION = frozenset(
    {
        "first_error",
        "user_flags",
        "engine_config",
        "kv_cache_memory_gib",
        "startup_complete",
        "engine_ready",
        "served",
        "api_server",
        "requests_served",
        "requests_failed",
        "plugins_available",
        "plugins_loaded",
    }
)
"""Facts about how far a log goes or which observer is present, not about how the server runs."""
_FLAG = "flag "
_ABSENT = "(none)"
_IRRELEVANT_FLAGS = frozenset({"port", "host", "model_tag", "uvicorn_log_level", "api_key"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One fact that is not the same on both sides."""

    fact: str
    a: str | None
    """None: not stated."""
    b: str | None
    declared: bool
    evidence_a: tuple[Place, ...] = ()
    evidence_b: tuple[Place, ...] = ()

    @property
    def decides(self) -> bool:
        """Whether it makes the comparison unfair: both sides state it and nobody declared it."""
        return not self.declared and self.a is not None and self.b is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerComparison:
    """What differs between two servers."""

    differences: tuple[Difference, ...]
    same: tuple[str, ...]
    """Facts that both state alike."""
    problems: tuple[str, ...]
    """What makes either side unfit for any comparison."""
    unseen: tuple[str, ...] = ()
    """What could differ unnoticed, because a side does not record it."""
    same_values: tuple[tuple[str, str], ...] = ()
    """The same facts, with what A states."""

    @property
    def fair(self) -> bool:
        """Whether an A/B between them measures only what was declared."""
        return not self.problems and not any(item.decides for item in self.differences)

    @property
    def summary(self) -> str:
        """The verdict in one line."""
        undeclared = [item.fact for item in self.differences if item.decides]
        reasons = [*self.problems, *(f"{name} differs" for name in undeclared)]
        if reasons:
            return f"NOT COMPARABLE: {'; '.join(reasons)}"
        declared = [item.fact for item in self.differences if item.declared]
        verdict = f"FAIR: only declared differences ({', '.join(declared) or 'none'})"
        return f"{verdict}; not recorded: {'; '.join(self.unseen)}" if self.unseen else verdict


def compare_servers(a: Evidence, b: Evidence, *, declared: Iterable[str]) -> ServerComparison:
    """Compares all facts of two servers.

    Args:
        a: evidence of one arm.
        b: evidence of the other.
        declared: facts (or ``flag NAME``, ``env NAME``, ``package NAME``, ``config NAME``) that are
            meant to differ. What a plan of hwtune's adds to its arm is declared by it.
    """
    wanted = frozenset((*declared, *_declared_by_plan(a), *_declared_by_plan(b)))
    left, right = _with_defaults(_conditions(a), _conditions(b))
    left, right = _with_absent(left, right, a, b)
    differences, same = [], []
    for fact in sorted({*left, *right}):
        one, other = left.get(fact), right.get(fact)
        if one == other or (fact == "attention_backend" and _same(one, other)):
            same.append(fact)
            continue
        differences.append(
            Difference(
                fact=fact,
                a=one,
                b=other,
                declared=fact in wanted,
                evidence_a=a.places(fact)[:1],
                evidence_b=b.places(fact)[:1],
            )
        )
    return ServerComparison(
        differences=tuple(differences),
        same=tuple(same),
        problems=(*_problems("A", a), *_problems("B", b)),
        unseen=(*_unseen("A", a), *_unseen("B", b)),
        same_values=tuple((fact, left[fact]) for fact in same),
    )


def _unseen(side: str, evidence: Evidence) -> list[str]:
    if evidence.environment is None:
        return [f"variables and packages of {side}"]
    return []


def _declared_by_plan(evidence: Evidence) -> list[str]:
    added = () if evidence.plan is None else evidence.plan.added
    flags = [f"{_FLAG}{item.name.lstrip('-').replace('-', '_')}" for item in added]
    return [*flags, *(f"env {item.name}" for item in added)]


def _with_absent(
    left: dict[str, str], right: dict[str, str], a: Evidence, b: Evidence
) -> tuple[dict[str, str], dict[str, str]]:
    """Where both sides recorded their environment, what one lacks is not set there."""
    if a.environment is None or b.environment is None:
        return left, right
    names = [name for name in (*left, *right) if name.startswith(("env ", "package "))]
    absent = dict.fromkeys(names, _ABSENT)
    return {**absent, **left}, {**absent, **right}


def _with_defaults(
    left: dict[str, str], right: dict[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """A flag that one side gave and the other, whose flags are known, did not is the default."""
    flags = {name for name in (*left, *right) if name.startswith(_FLAG)}
    if not all(any(name.startswith(_FLAG) for name in side) for side in (left, right)):
        return left, right
    defaults = dict.fromkeys(flags, "default")
    return {**defaults, **left}, {**defaults, **right}


def _same(one: str | None, other: str | None) -> bool:
    return one is not None and other is not None and same_backend(one, other)


def _conditions(evidence: Evidence) -> dict[str, str]:
    found = {
        name: show_value(fact.value)
        for name, fact in evidence.facts.items()
        if name not in _NO_CONDITION
    }
    flags = flags_of(evidence)
    found.update({f"{_FLAG}{name}": text for name, text in flags.items()})
    config = evidence.value("engine_config")
    if isinstance(config, str):
        found.update({f"config {name}": text for name, text in engine_fields(config).items()})
    if evidence.environment is not None:
        found.update(environment_conditions(evidence.environment))
    hit = [item.kernel for item in tallies(evidence) if item.hits]
    if evidence.has_counters:
        found["kernels"] = ", ".join(hit) or "none"
    return found


def flags_of(evidence: Evidence) -> Mapping[str, str]:
    """The flags that the user gave, as vLLM prints them; empty when they cannot be read."""
    flags = given_flags(evidence)
    return {name: repr(value) for name, value in flags.items() if name not in _IRRELEVANT_FLAGS}


def _problems(side: str, evidence: Evidence) -> list[str]:
    found = []
    if evidence.value("first_error") is not None:
        found.append(f"{side} failed: {evidence.value('first_error')}")
    elif evidence.value("startup_complete") is not True and evidence.value("served") is None:
        found.append(f"{side} shows no completed start-up")
    return found
