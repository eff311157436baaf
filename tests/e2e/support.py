"""How the end-to-end tests talk to hwtune and to the servers it runs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MODEL = Path(__file__).parents[2] / "examples" / "tiny-qwen3.5"
FLAGS = ("--dtype", "bfloat16", "--enforce-eager", "--max-model-len", "8192")

EVERY_SHAPE = MODEL / "every-shape.toml"
"""Profile whose kernels take every shape they can compute."""


@dataclass
class Served:
    """A ``hwtune serve`` that runs."""

    process: subprocess.Popen[str]
    run_dir: Path
    url: str
    output: list[str] = field(default_factory=list)

    def complete(self, prompt: list[int], tokens: int = 12) -> str:
        """The answer's text, greedy and of fixed length."""
        body = {
            "model": str(MODEL),
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        request = urllib.request.Request(
            f"{self.url}/v1/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            answer: dict[str, Any] = json.load(response)
        text: str = answer["choices"][0]["text"]
        return text


def prompt(length: int) -> list[int]:
    """Token ids, the same for the same length."""
    return [10 + (i * 37 + length) % 900 for i in range(length)]


def cli_environment(**changes: str) -> dict[str, str]:
    """One GiB of cache, so that several servers fit."""
    return {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", **changes}


def serve_command(*arguments: str) -> list[str]:
    """``hwtune serve`` of the tiny model on the cpu profile, prefix caching off."""
    profile = () if "--profile" in arguments else ("--profile", "cpu")
    command = [sys.executable, "-m", "hwtune", "serve", str(MODEL), *profile, *arguments]
    return [*command, *FLAGS, "--no-enable-prefix-caching"]


def hwtune(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a hwtune command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "hwtune", *arguments],
        env=cli_environment(**environment),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def processes_of(run_dir: Path) -> list[int]:
    """Live processes whose plan is the one in this run directory."""
    wanted = f"HWTUNE_PLAN={run_dir}".encode()
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in environ.read_bytes():
                found.append(int(environ.parent.name))
        except OSError:
            continue
    return found
