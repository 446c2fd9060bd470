#!/usr/bin/env bash
# Shows that the lower bounds in pyproject.toml are true: eval/lower_bounds.sh
# Installs them in an environment of its own and runs the quickstart and the --help of every command, with the newest
# click that fits, on which typer depends, and with the oldest. Torch is that of constraints.txt, because its oldest
# version exists for GPUs alone. Takes some minutes; exit code 1 where something fails.
set -euo pipefail
root=$(CDPATH= cd -- "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python=$folder/venv/bin/python
install() { "$python" -m pip install -qq --disable-pip-version-check "$@"; }

bounds=$(sed -n '/^dependencies = \[/,/^\]/p' "$root/pyproject.toml" | grep -o '"[^"]*"' | tr -d '"' | sed 's/>=/==/' | grep -v '^torch==')
# shellcheck disable=SC2086 # one word for each package
install "$(grep '^torch==' "$root/constraints.txt")" $bounds
install --no-deps "$root"
failed=0
for click in newest click==8.0.0; do
    # The first installation has taken the newest one.
    # shellcheck disable=SC2086
    [[ $click == newest ]] || install $bounds "$click"
    echo "$("$python" -m pip list 2>/dev/null | grep -iE '^(typer|click) ' | tr -s ' ' | paste -sd ' '):"
    commands=$("$python" -c '
from decentnode.cli.app import app
print(*(c.name or c.callback.__name__.replace("_", "-") for c in app.registered_commands))')
    for command in $commands; do
        if ! (cd "$folder" && "$python" -m decentnode "$command" --help >"$folder/output" 2>&1); then
            echo "  FAILED $command --help: $(tail -1 "$folder/output")"
            failed=1
        fi
    done
    echo "  --help of $(wc -w <<<"$commands") commands"
    if (cd "$folder" && "$python" -m decentnode run "$root/configs/quickstart.yaml" rounds=10 run_dir="$folder/$click" >"$folder/output" 2>&1); then
        grep -E 'test accuracy' "$folder/output"
    else
        echo "  FAILED quickstart: $(tail -1 "$folder/output")"
        failed=1
    fi
done
exit "$failed"
