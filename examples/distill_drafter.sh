#!/bin/sh
# Trains draft heads for SmolLM2-135M-Instruct on its own texts, in a few minutes, and says what they are worth beside prompt lookup:
#   examples/distill_drafter.sh [--no-install] [options of the program; --help lists them]
# Stop it whenever you like (Ctrl-C): the same command goes on where it stopped. Writes build/generate/draft.LOSS.heads (--out names another place), for
#   examples/generate.sh --prompt "..." --draft heads:build/generate/draft.forward_kl.heads
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/generate
model=$build/models/SmolLM2-135M-Instruct.Q4_1.gguf

no_install=
if [ "${1:-}" = --no-install ]; then
    no_install=--no-install
    shift
fi
{
    "$root/examples/generate.sh" $no_install --help >/dev/null
    if ! cmake --build "$build" --target distill_drafter >"$build/build.log"; then
        tail -n 40 "$build/build.log"
        echo "The build failed; $build/build.log has all of its output."
        exit 1
    fi
    "$root/examples/llama/fetch_model.sh" "$model"
} >&2
exec "$build/bin/distill_drafter" --model "$model" --out "$build/draft" "$@"
