"""What is skipped where, and how hard the property tests try."""

import importlib.util
import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from hwtune.domain import validity
from hwtune.domain.bench import Gate

settings.register_profile(
    "default", max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("nightly", parent=settings.get_profile("default"), max_examples=10_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# A shell's background job ignores Ctrl-C, and so would every command that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

NEEDS = {"vllm": ("vllm", "make test"), "torch": ("torch", "make unit")}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        parts = Path(item.path).parts
        needs = "torch" if "kernels" in parts else "vllm" if "plugin" in parts else None
        if item.get_closest_marker("vllm"):
            needs = "vllm"
        if needs and importlib.util.find_spec(NEEDS[needs][0]) is None:
            package, target = NEEDS[needs]
            reason = f"{package} is not installed here; `{target}` installs it"
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def on_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the gates that a busy machine turns red, in tests of something else.

    The mocks' answers last some milliseconds, so a single pause decides these gates. What they do
    is tested on records (tests/unit/test_compare.py).
    """
    for name, function in (
        ("client on time", "_client_on_time"),
        ("answers streamed", "_streamed"),
    ):
        gate = Gate(name=name, state="passed", evidence="not looked at in this test")
        monkeypatch.setattr(validity, function, lambda records, gate=gate: gate)
