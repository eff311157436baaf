"""The hook of vllm-ascend's attention state, on a stand-in and on facts of the real sources.

``STAND_IN`` is no vllm-ascend: it has the names, the signatures and the order of calls of 0.18.0
(worker/model_runner_v1.py, attention/attention_v1.py) and computes nothing. The real package cannot
be imported without CANN; what is known of it are the signatures in ``SEEN``.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hwtune.domain.attn_states import AttnStates, attn_states
from hwtune.domain.errors import InputError
from hwtune.io.counters import read_counters
from hwtune.io.plans import write_plan
from tests.plugin.test_dispatch import CountedInMemory
from tests.unit.test_planning_ascend import plan

STAND_IN = {
    "__init__.py": "",
    "_version.py": "__version__ = version = '{version}'\n",
    "worker/__init__.py": "",
    "_310p/__init__.py": "",
    "attention/__init__.py": "",
    "attention/attention_v1.py": """
from enum import Enum

class AscendAttentionState(Enum):
    PrefillNoCache = 0
    PrefillCacheHit = 1
    DecodeOnly = 2
    ChunkedPrefill = 3
    SpecDecoding = 4

class Context:
    capturing = False

_EXTRA_CTX = Context()

class AscendAttentionBackendImpl:
    sinks = None
    paged = False

    def forward_fused_infer_attention(self, query, key, value, attn_metadata, output):
        return ("fia", query)

    def forward_paged_attention(self, query, attn_metadata, output=None):
        return ("paged", query)

    def forward_impl(self, query, key, value, kv_cache, attn_metadata, output):
        if attn_metadata.attn_state == AscendAttentionState.DecodeOnly and self.paged:
            return self.forward_paged_attention(query, attn_metadata, output)
        return self.forward_fused_infer_attention(query, key, value, attn_metadata, output)
""",
    "worker/model_runner_v1.py": """
from vllm_ascend.attention.attention_v1 import AscendAttentionState as State

class NPUModelRunner:
    def _build_attn_state(self, num_reqs, num_scheduled_tokens, num_valid_tokens):
        state = State[num_scheduled_tokens]
        self.attn_state = State.ChunkedPrefill if state == State.SpecDecoding else state
        return state
""",
    "_310p/model_runner_310p.py": """
from vllm_ascend.attention.attention_v1 import AscendAttentionState as State
from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

class NPUModelRunner310(NPUModelRunner):
    def _build_attn_state(self, num_reqs, num_scheduled_tokens, num_valid_tokens):
        super()._build_attn_state(num_reqs, num_scheduled_tokens, num_valid_tokens)
        self.attn_state = State.SpecDecoding
        return State.SpecDecoding
""",
}

LOAD = """
import logging, sys; logging.basicConfig(level=logging.INFO)
from vllm.plugins import load_general_plugins; load_general_plugins()
assert not [m for m in sys.modules if m.startswith("vllm_ascend.")], "the plugin imported it"
from vllm_ascend.worker.model_runner_v1 import NPUModelRunner
from vllm_ascend.attention import attention_v1
from vllm_ascend.attention.attention_v1 import AscendAttentionBackendImpl, AscendAttentionState
from types import SimpleNamespace
runner, impl = NPUModelRunner(), AscendAttentionBackendImpl()
def step(name, layers=2, **changes):
    state = runner._build_attn_state(1, name, None)
    vars(impl).update(changes)
    metadata = SimpleNamespace(attn_state=runner.attn_state)
    return [impl.forward_impl("q", "k", "v", (), metadata, None) for _ in range(layers)]
"""


def stand_in(folder: Path, version: str = "0.18.0", **changes: str) -> Path:
    for name, text in {**STAND_IN, **changes}.items():
        path = folder / "vllm_ascend" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{version}", version))
    return folder


def run(folder: Path, code: str) -> tuple[str, AttnStates | None]:
    run_dir = folder / "run"
    run_dir.mkdir()
    environment = {
        **os.environ,
        "HWTUNE_PLAN": str(write_plan(plan(counting=True), run_dir)),
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr, attn_states(read_counters(run_dir))


STEPS = """
assert step("PrefillNoCache") == [("fia", "q")] * 2
assert step("SpecDecoding") == [("fia", "q")] * 2
assert step("DecodeOnly", paged=True) == [("paged", "q")] * 2
attention_v1._EXTRA_CTX.capturing = True
step("DecodeOnly")
attention_v1._EXTRA_CTX.capturing = False
step("ChunkedPrefill", layers=1, sinks=object())
assert impl.forward_impl(query=1, key=2, value=3, kv_cache=(), output=None,
    attn_metadata=SimpleNamespace(attn_state=AscendAttentionState.PrefillCacheHit)) == ("fia", 1)
from vllm_ascend._310p.model_runner_310p import NPUModelRunner310
NPUModelRunner310()._build_attn_state(1, "DecodeOnly", None)
"""


def test_states_and_calls_are_counted_and_results_untouched(tmp_path: Path) -> None:
    text, states = run(stand_in(tmp_path), LOAD + STEPS)
    assert states is not None
    assert dict(states.returned) == {
        "PrefillNoCache": 1,
        "SpecDecoding": 2,  # one of the 310P's, whose base returned DecodeOnly
        "DecodeOnly": 2,
        "ChunkedPrefill": 1,
    }
    assert dict(states.stored) == {
        "PrefillNoCache": 1,
        "ChunkedPrefill": 2,
        "DecodeOnly": 2,
        "SpecDecoding": 1,
    }
    assert {(c.operator, c.state): (c.called, c.recorded) for c in states.calls} == {
        ("npu_fused_infer_attention_score", "PrefillNoCache"): (2, 0),
        ("npu_fused_infer_attention_score", "ChunkedPrefill"): (2, 0),
        ("_npu_paged_attention", "DecodeOnly"): (2, 2),
        ("npu_fused_infer_attention_score_v2", "ChunkedPrefill"): (1, 0),
        ("npu_fused_infer_attention_score_v2", "PrefillCacheHit"): (1, 0),
    }
    assert (states.forwards, states.unexplained) == (10, 0)
    assert "hwtune[n] observing backend=vllm-ascend version=0.18.0" in text
    assert "hwtune[n] counting target=NPUModelRunner._build_attn_state version=0.18.0" in text
    assert "AscendAttentionBackendImpl.forward_paged_attention version=0.18.0" in text


class Hooked:
    """The hook in this process, on the stand-in, with counters and marker lines in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        from hwtune.adapters.vllm import ascend_hook

        self.counters = CountedInMemory()
        self.marks: list[str] = []
        self.faults: list[Exception] = []
        monkeypatch.setattr(ascend_hook, "counters", lambda: self.counters)
        monkeypatch.setattr(ascend_hook, "mark", self.marks.append)
        monkeypatch.setattr(ascend_hook, "count_fault", lambda e, k: self.faults.append(e))
        monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
        monkeypatch.syspath_prepend(folder)
        self.watch = ascend_hook.watch

    def step(self, state: str) -> Any:
        """One step of one layer, as the stand-in's runner and layer make it."""
        attention = importlib.import_module("vllm_ascend.attention.attention_v1")
        runner = importlib.import_module("vllm_ascend.worker.model_runner_v1").NPUModelRunner()
        runner._build_attn_state(1, state, None)
        metadata = SimpleNamespace(attn_state=runner.attn_state)
        impl = attention.AscendAttentionBackendImpl()
        return impl.forward_impl("q", "k", "v", (), metadata, None)


@pytest.fixture
def hooked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hooked]:
    yield Hooked(monkeypatch, tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm_ascend"]:
        del sys.modules[name]


def test_loading_twice_counts_once(hooked: Hooked, tmp_path: Path) -> None:
    stand_in(tmp_path)
    hooked.watch()
    hooked.step("DecodeOnly")
    hooked.watch()
    hooked.step("DecodeOnly")
    assert hooked.counters.counts()[("attn_state", "returned", "DecodeOnly")] == 2
    assert hooked.counters.counts()[("forward_impl", "called", "DecodeOnly")] == 2


def test_another_signature_is_refused_with_one_line_and_left_alone(
    hooked: Hooked, tmp_path: Path
) -> None:
    changed = STAND_IN["worker/model_runner_v1.py"].replace("num_valid_tokens", "batch")
    stand_in(tmp_path, **{"worker/model_runner_v1.py": changed})
    hooked.watch()
    assert hooked.step("DecodeOnly") == ("fia", "q")
    (refused,) = [mark for mark in hooked.marks if mark.startswith("refused")]
    assert refused == (
        "refused reason=attn_state cannot be counted: vllm-ascend 0.18.0: NPUModelRunner."
        "_build_attn_state takes (self, num_reqs, num_scheduled_tokens, batch), not "
        "(self, num_reqs, num_scheduled_tokens, num_valid_tokens)"
    )
    assert ("forward_impl", "called", "DecodeOnly") in hooked.counters.counts()
    assert not [key for key in hooked.counters.counts() if key[0] == "attn_state"]


@pytest.mark.parametrize("version", ["0.13.0", "0.26.0", "1.0.0"])
def test_a_version_that_was_not_read_is_refused(
    hooked: Hooked, tmp_path: Path, version: str
) -> None:
    stand_in(tmp_path, version)
    with pytest.raises(InputError, match=f"vllm-ascend {version} is outside"):
        hooked.watch()
    hooked.step("DecodeOnly")
    assert not hooked.counters.counts()


def test_without_vllm_ascend_it_says_so(hooked: Hooked) -> None:
    with pytest.raises(InputError, match="not installed here"):
        hooked.watch()


def test_counters_that_break_never_break_a_step(
    hooked: Hooked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hwtune.adapters.vllm import ascend_hook

    stand_in(tmp_path)
    hooked.watch()

    def fail() -> None:
        message = "no room"
        raise RuntimeError(message)

    monkeypatch.setattr(ascend_hook, "counters", fail)
    assert hooked.step("DecodeOnly") == ("fia", "q")
    assert hooked.step("DecodeOnly") == ("fia", "q")
    assert [str(error) for error in hooked.faults] == ["no room"]


SEEN = {
    "0.18.0": {
        "_build_attn_state": "self, num_reqs, num_scheduled_tokens, num_valid_tokens",
        "forward_impl": "self, query, key, value, kv_cache, attn_metadata, output",
        "forward_fused_infer_attention": "self, query, key, value, attn_metadata, output",
        "forward_paged_attention": "self, query, attn_metadata, output=None",
    },
    "0.23.0, 0.25.1rc1 and 182b75ea84": {
        "_build_attn_state": "self, num_reqs, num_scheduled_tokens, num_valid_tokens",
        "forward_impl": "self, query, key, value, kv_cache, attn_metadata, output",
        "forward_fused_infer_attention": (
            "self, query, key, value, attn_metadata, output, kv_cache=None"
        ),
        "forward_paged_attention": "self, query, attn_metadata, output=None",
    },
}
"""Parameters in the real sources; ``scripts/check_ascend_targets.py`` reads them again."""


def module_with(target: Any, parameters: str) -> ModuleType:
    namespace: dict[str, Any] = {}
    exec(f"def {target.method}({parameters}): pass", namespace)  # noqa: S102 - our own text
    owner = type(target.owner, (), {target.method: namespace[target.method]})
    module = ModuleType(target.module)
    setattr(module, target.owner, owner)
    return module


@pytest.mark.parametrize("version", SEEN)
def test_every_target_fits_the_signatures_of_the_real_sources(version: str) -> None:
    from hwtune.adapters.vllm.ascend_hook import TARGETS, _probe

    for target in TARGETS:
        _probe(target, module_with(target, SEEN[version][target.method]))
        with pytest.raises(InputError, match="takes"):
            _probe(target, module_with(target, "self, scheduler_output"))
        with pytest.raises(InputError, match="has no"):
            _probe(target, ModuleType(target.module))


def test_the_metadata_is_taken_from_where_the_signature_has_it() -> None:
    """A wrong position would count every state as None."""
    from hwtune.adapters.vllm.ascend_hook import TARGETS, Counting

    class Recording(Counting):
        def __init__(self) -> None:
            self.seen: list[tuple[str, str, object]] = []

        def add(self, kernel: str, outcome: str, state: object) -> None:
            self.seen.append((kernel, outcome, state))

    for target in TARGETS:
        if "attn_metadata" not in target.parameters:
            continue
        counting = Recording()
        wrapped = target.wrap(lambda *args: "result", counting, ModuleType("m"))
        arguments = [
            SimpleNamespace(attn_state="here") if name == "attn_metadata" else name
            for name in target.parameters[1:]
        ]
        assert wrapped(SimpleNamespace(sinks=None), *arguments) == "result"
        assert [state for _, _, state in counting.seen] == ["here"], target.name
