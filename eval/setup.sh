# Sourced by eval/run.sh, tests/run.sh and docs/build.sh: sets `python` to an interpreter that can run this checkout.
# Uses the active environment where decentnode of this checkout is installed in it, else .venv, which is
# made when it is missing and brought up to date when pyproject.toml, constraints.txt or what is compiled has changed.

root=$(CDPATH= cd -- "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=$root/.venv

fail() {
    echo "decentnode: $1" >&2
    exit 4
}

# What an installation depends on; it is kept beside what was installed.
stamp() {
    echo "$root"
    cat "$root/pyproject.toml" "$root/constraints.txt" "$root"/decentnode/sharing/blocks/weighted_sum.c "$root/eval/build_native.py"
}

is_current() {
    [[ -x $venv/bin/python ]] && cmp -s <(stamp) "$venv/$1.stamp"
}

# Whether decentnode of this very checkout, and all modules named, can be imported.
can_run() {
    (cd / && "$1" - "$root" "${@:2}") 2>/dev/null <<'PYTHON'
import importlib.util
import pathlib
import sys

found = [importlib.util.find_spec(name) for name in ("decentnode", "torch", "zmq", "typer", *sys.argv[2:])]
sys.exit(not (all(found) and pathlib.Path(found[0].origin).parent.parent.samefile(sys.argv[1])))
PYTHON
}

find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.14 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    fail "needs Python 3.11 or newer; install one, or name it: PYTHON=/path/to/python3 $0"
}

# install run|test|docs: makes .venv, or brings it up to date. Of two that start at once, the second waits.
install() {
    local base
    base=$(find_python) || exit
    "$base" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$base cannot make environments; install python3-venv (apt-get install python3-venv) and start again"
    mkdir -p "$venv"
    exec 9>"$venv/lock"
    flock 9
    is_current "$1" || fill "$base" "$1"
    exec 9>&-
}

fill() {
    local extra=compression,figures,privacy
    [[ $2 == run ]] || extra=$extra,$2
    echo "decentnode: installing into .venv, once; this takes a few minutes ..." >&2
    if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        find "$venv" -mindepth 1 -maxdepth 1 ! -name lock -exec rm -rf {} +
        "$1" -m venv "$venv" || fail ".venv could not be made"
    fi
    "$venv/bin/python" -m pip install -qq --disable-pip-version-check \
        -c "$root/constraints.txt" -e "$root[$extra]" || fail "the installation failed; its reason is above"
    stamp >"$venv/run.stamp"
    [[ $2 == run ]] || stamp >"$venv/$2.stamp"
}

# prepare run|test|docs [MODULE...]: afterwards $python can import decentnode and these modules.
prepare() {
    python=$venv/bin/python
    if [[ -n ${PYTHON:-}${VIRTUAL_ENV:-}${CONDA_PREFIX:-} ]]; then
        python=${PYTHON:-python3}
        can_run "$python" "${@:2}" && return
        python=$venv/bin/python
    fi
    is_current "$1" || install "$1"
}
