#!/usr/bin/env bash
# Fetches what a bare machine with a GPU lacks into build/wheels: eval/gpu/wheels.sh [--list]
# Such a machine has Python 3.12, torch for CUDA and no network (docs/gpu.md). Take the folder along; verify.sh
# installs from it. --list prints the packages with their versions, which are those of constraints.txt.
set -euo pipefail
root=$(CDPATH= cd -- "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
most_megabytes=64

# What is there beside torch.
present=(torch networkx pyyaml numpy rich typer xxhash matplotlib safetensors)
# The other dependencies of pyproject.toml, what they need in turn, and the extras that checks need.
lacking=(
    pyzmq msgspec pydantic zstandard cryptography
    pydantic_core annotated-types typing-inspection typing_extensions cffi pycparser
    pywavelets dp-accounting dm-tree
)

unlisted=$(python3 - "$root/pyproject.toml" "${present[@]}" "${lacking[@]}" <<'PYTHON'
import pathlib
import re
import sys

content = pathlib.Path(sys.argv[1]).read_text()
dependencies = re.findall(r'"([\w-]+)', content.split("\ndependencies = [")[1].split("]")[0])
print(*sorted(set(dependencies) - set(sys.argv[2:])))
PYTHON
)
if [[ $unlisted ]]; then
    echo "eval/gpu/wheels.sh: pyproject.toml has dependencies that are in neither list of this script: $unlisted" >&2
    exit 2
fi
pinned=()
for name in "${lacking[@]}"; do
    pinned+=("$(grep -ix "${name//[-_]/[-_]}==.*" "$root/constraints.txt")")
done
if [[ ${1-} == --list ]]; then
    printf '%s\n' "${pinned[@]}"
    exit
fi
wheels=$root/build/wheels
rm -rf "$wheels"
platforms=()
for platform in 2_34 2_28 2_27 2_26 2_24 2_17; do platforms+=(--platform "manylinux_${platform}_x86_64"); done
python3 -m pip download -qq --disable-pip-version-check --no-deps --only-binary=:all: --dest "$wheels" \
    --python-version 3.12 --implementation cp "${platforms[@]}" --platform manylinux2014_x86_64 "${pinned[@]}"
megabytes=$(du -sm "$wheels" | cut -f1)
if ((megabytes >= most_megabytes)); then
    echo "eval/gpu/wheels.sh: $wheels has $megabytes MB, and must have less than $most_megabytes" >&2
    exit 1
fi
echo "$wheels: ${#pinned[@]} wheels, $megabytes MB"
