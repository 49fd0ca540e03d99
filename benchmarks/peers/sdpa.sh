#!/bin/sh
# Speed of attend() beside PyTorch's scaled_dot_product_attention on the same shapes and threads (what is measured: sdpa.py).
#   benchmarks/peers/sdpa.sh [--no-install] [--build-dir DIR] [options of sdpa.py: --threads N, --rounds N]
# Installs PyTorch (large) in a virtual environment of the build tree.
set -eu
. "$(dirname "$0")/arguments.sh"

beside_torch attend_measure
exec "$python" "$root/benchmarks/peers/sdpa.py" --ours "$build/attend_measure" "$@"
