#!/usr/bin/env bash
# Runs this machine's part of an experiment: eval/run.sh [CONFIG.yaml [key=value ...]]
# Without arguments: configs/quickstart.yaml. The first start installs what is missing into .venv.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
prepare run
(($#)) || set -- "$root/configs/quickstart.yaml"
# What the set-up took is not the experiment's start-up.
export DECENTNODE_SETUP_SECONDS=$SECONDS
# -P: a file such as random.py in the current folder would take the place of Python's own.
exec "$python" -P -m decentnode run "$@"
