#!/usr/bin/env bash
# Builds the pages and the API reference: docs/build.sh. The first start installs what is missing into .venv.
# Any warning ends it with an error. The site is build/site/index.html.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../eval/setup.sh"
prepare docs zensical mkdocstrings mkdocstrings_handlers ruff
cd "$root"
rm -rf build/pages build/site
mkdir -p build/pages
cp -R README.md CHANGELOG.md CONTRIBUTING.md CITATION.cff LICENSE docs configs graphs build/pages
# `norun` is for the tests of the pages; Markdown knows languages alone.
find build/pages -name '*.md' -exec sed -i -E 's/^(```[a-z]+) norun$/\1/' {} +
# Folders of a site are below that of its configuration.
cp docs/mkdocs.yml build
messages=$("$python" -m zensical build --clean --strict -f build/mkdocs.yml 2>&1) || {
    echo "$messages" >&2
    exit 1
}
echo "decentnode: the pages are in $root/build/site/index.html"
