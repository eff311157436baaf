"""The KV-cache page ("block") size that vLLM derives for a hybrid model."""

from __future__ import annotations

from hwtune.domain.page_derive import derive_page
from hwtune.domain.page_options import PageOption, PageOptions, page_options
from hwtune.domain.page_steps import DerivationStep, EngineRefusalError, PageDerivation

__all__ = [
    "DerivationStep",
    "EngineRefusalError",
    "PageDerivation",
    "PageOption",
    "PageOptions",
    "derive_page",
    "page_options",
]
