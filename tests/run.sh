#!/usr/bin/env bash
# Runs the tests, and without arguments also the type checker: tests/run.sh [arguments of pytest]. The first start
# installs what is missing into .venv. Four workers share the files, because a third of the time is waiting; tests
# that take fixed ports name ones that no other file takes. `--costs files` prints what each costs.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../eval/setup.sh"
prepare test dp_accounting pytest pytest_timeout hypothesis ruff mypy pywt lz4 fpzip pcodec pandas scipy pyarrow jinja2 starlette uvicorn httpx2 triton tensorboard PIL sacrebleu tokenizers torchmetrics sklearn datasets hatchling hatch_fancy_pypi_readme zensical mkdocstrings
cd "$root"
# The commands that tests start find decentnode compiled, and choose their interpreter themselves.
unset PYTHONDONTWRITEBYTECODE PYTHON
if [[ $# -gt 0 ]]; then
    exec "$python" -m pytest --workers 4 "$@"
fi
# The type checker needs half a minute of a core; beside the tests it takes what they leave.
types=$(mktemp)
nice -n 19 "$python" -m mypy >"$types" 2>&1 &
checker=$!
trap 'kill "$checker" 2>/dev/null || true; rm -f "$types"' EXIT
code=0
"$python" -m pytest --workers 4 || code=$?
wait "$checker" || {
    cat "$types"
    [[ $code -ne 0 ]] || code=1
}
exit "$code"
