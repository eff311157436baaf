"""The records a derivation is made of."""

from __future__ import annotations

from dataclasses import dataclass, field

from hwtune.domain.deployment import Deployment
from hwtune.domain.errors import InfeasibleError
from hwtune.domain.model import ModelShape, StateTensor

StepValue = str | int | float


class EngineRefusalError(InfeasibleError):
    """vLLM itself would refuse the combination: its exception class and its words."""

    def __init__(self, text: str, *, error_class: str) -> None:
        super().__init__(f"vLLM refuses this: {error_class}: {text}")
        self.error_class = error_class
        self.text = text


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivationStep:
    """One step of the derivation: the table people read is printed from these."""

    name: str
    rule: str
    """Formula in words or symbols."""
    inputs: dict[str, StepValue]
    value: StepValue
    unit: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PageDerivation:
    """The page vLLM will choose, with every step that led to it."""

    model: ModelShape
    deployment: Deployment
    rule: str
    """Name of the rule generation, e.g. ``vllm-0.32``."""
    alignment_tokens: int
    """The granularity the page was rounded to."""
    block_size_tokens: int
    """The attention page in tokens."""
    attention_bytes_per_token: int
    """Per layer and rank."""
    attention_page_bytes: int
    state_bytes: int | None
    """Recurrent state per layer and rank before padding; None when not hybrid."""
    padding_bytes: int
    padding_pct: float | None
    """As vLLM prints it: 100 * (page - state) / state; None when nothing is padded."""
    mamba_block_size: int | None
    mamba_cache_mode: str | None
    enable_prefix_caching: bool | None
    steps: tuple[DerivationStep, ...]
    notes: tuple[str, ...] = ()
    mamba_page_padded_bytes: int | None = None
    """The padded recurrent page; None when vLLM pads nothing."""
    skip_page_padded_bytes: int | None = None
    """Page of the layers that stay unquantised; None without such layers."""
    state_tensors: tuple[StateTensor, ...] = ()
    hybrid: bool = True
    """Whether the release treats the model as hybrid."""
    rule_ran: bool = True
    """Whether the page rule for hybrid models set the block size."""
    unused_state_bytes: int | None = None
    """Bytes of the state that a class declares although the config has no recurrent layer."""


@dataclass(slots=True)
class Trace:
    """Collects steps and notes while the rule runs."""

    steps: list[DerivationStep] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(
        self, name: str, rule: str, inputs: dict[str, StepValue], value: int, unit: str, source: str
    ) -> int:
        """Records a step and gives its value back."""
        self.steps.append(
            DerivationStep(
                name=name, rule=rule, inputs=inputs, value=value, unit=unit, source=source
            )
        )
        return value

    def note(self, text: str) -> None:
        """Records a remark for people, once."""
        if text not in self.notes:
            self.notes.append(text)
