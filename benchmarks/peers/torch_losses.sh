#!/bin/sh
# Speed of losses over a vocabulary, value and gradient, beside PyTorch on the same shapes and threads (what is measured: torch_losses.py).
#   benchmarks/peers/torch_losses.sh [--no-install] [--build-dir DIR] [options of torch_losses.py: --threads N, --rounds N]
# Installs PyTorch (large) in a virtual environment of the build tree.
set -eu
. "$(dirname "$0")/arguments.sh"

beside_torch loss_measure
exec "$python" "$root/benchmarks/peers/torch_losses.py" --ours "$build/loss_measure" "$@"
