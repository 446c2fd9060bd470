#!/usr/bin/env bash
# Runs the tests: tests/run.sh [arguments of pytest]. The first start installs what is missing into .venv.
# Four workers share the files, because a third of the time is waiting; tests that take fixed ports name ones that
# no other file takes. In the order of the files the short ones come last, so that no worker is left alone with
# a long one.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../eval/setup.sh"
prepare test dp_accounting pytest pytest_timeout xdist hypothesis ruff mypy pywt lz4 fpzip pcodec pandas scipy plotly pyarrow jinja2 starlette uvicorn httpx2 triton tensorboard PIL sacrebleu tokenizers hatchling hatch_fancy_pypi_readme mkdocs material mkdocstrings PIL
cd "$root"
# The type checker needs half a minute of a core; beside the tests it takes what they leave, and its own test
# then finds everything in the cache.
[[ $# -gt 0 ]] || nice -n 19 "$python" -m mypy >/dev/null 2>&1 &
# The commands that tests start find decentnode compiled, and choose their interpreter themselves.
unset PYTHONDONTWRITEBYTECODE PYTHON
exec "$python" -m pytest -n 4 --dist loadfile --no-loadscope-reorder "$@"
