#!/usr/bin/env bash
# Runs every published experiment for two rounds on its generated sample: eval/experiments/run.sh [NAME...].
# Networks above ten million parameters have four nodes and small batches. It takes some minutes; a table shows what
# ran and what failed.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
prepare tasks PIL tokenizers sacrebleu
cd "$root"
exec "$python" eval/experiments/two_rounds.py "$@"
