#!/usr/bin/env bash
# Everything that a GPU has to show, in at most 8 minutes: eval/gpu/verify.sh [--backend gloo] [--only NAME ...]
# Prints a line for each check and a JSON object at the end (docs/gpu.md). Exit code 1 where a check fails, 2
# without a GPU. --backend gloo rehearses all of it on the CPU.
set -euo pipefail
root=$(CDPATH= cd -- "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
cd "$root"
python=${PYTHON:-$root/.venv/bin/python}
[[ -x $python ]] || python=python3
if ! "$python" -c 'import zmq, msgspec, pydantic, zstandard, cryptography' 2>/dev/null; then
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    "$python" -m pip install -qq --no-index --no-deps --no-compile --target "$site" build/wheels/*.whl || {
        echo "verify.sh: build/wheels lacks packages; where there is a network, run eval/gpu/wheels.sh" >&2
        exit 2
    }
    export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
fi
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
"$python" eval/gpu/verify.py "$@"
