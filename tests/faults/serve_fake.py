"""``hwtune serve`` of a program that stands for vLLM: ``serve_fake.py PORT RUN_DIR OPTIONS…``.

The whole command line, session and launcher are the real ones; only the plan is made here, because
planning needs vLLM.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from hwtune.adapters.vllm import planning
from hwtune.cli import main
from hwtune.domain.launch import LaunchPlan
from tests.unit.test_planning import plan

FAKE = Path(__file__).with_name("fake_vllm.py")
port, run_dir, *options = sys.argv[1:]
late = [option for option in options if option == "--bind-late"]


def fake_plan(*arguments: object, **named: object) -> LaunchPlan:
    argv = (sys.executable, str(FAKE), port, *late)
    expect = dataclasses.replace(
        plan().expect,
        block_size=None,
        padding_pct=None,
        enable_prefix_caching=None,
        mamba_cache_mode=None,
        backend=None,
        kernels=(),
    )
    return dataclasses.replace(plan(), argv=argv, port=int(port), expect=expect)


planning.plan_server = fake_plan
options = [option for option in options if option != "--bind-late"]
sys.argv = ["hwtune", "serve", "model", "--profile", "cpu", "--run-dir", run_dir, "--keep-going"]
sys.argv += ["--quiet", *options]
main()
