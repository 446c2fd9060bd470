#!/usr/bin/env bash
# Runs this machine's part of the experiment: ./run.sh [CONFIG.yaml] [key=value ...]
# Start it on each machine that experiment.yaml lists. Results are in runs/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
python=${PYTHON:-python3}
"$python" -P -c 'import decentnode' 2>/dev/null || {
    echo "run.sh: $python has no decentnode; install it, activate its environment, or set PYTHON" >&2
    exit 4
}
[[ $# -gt 0 && $1 != *=* ]] || set -- experiment.yaml "$@"
# -P: a file such as random.py in this folder would take the place of Python's own.
exec "$python" -P -m decentnode run "$@"
