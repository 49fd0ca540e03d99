#!/bin/sh
# Speed of losses over a vocabulary, value and gradient, beside PyTorch on the same shapes and threads (what is measured: torch_losses.py).
#   benchmarks/peers/torch_losses.sh [--no-install] [--build-dir DIR] [options of torch_losses.py: --threads N, --rounds N]
# Installs PyTorch (large) in a virtual environment of the build tree.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$root/build/peers install=yes
while [ $# -gt 0 ]; do
    case $1 in
        --no-install) install=no ;;
        --build-dir) build=$2; shift ;;
        *) break ;;
    esac
    shift
done

"$root/cmake/install_packages.sh" $install >&2 <<'PACKAGES'
g++                     the compiler
nlohmann-json3-dev      requests and answers
python3-venv            the virtual environment
PACKAGES

mkdir -p "$build"
python=$build/sdpa_venv/bin/python
if [ $install = yes ] && ! "$python" -c 'import torch' 2>/dev/null; then
    python3 -m venv "$build/sdpa_venv"
    "$python" -m pip install --quiet torch==2.9.1 numpy==2.4.6
fi
${CXX:-g++} -std=c++20 -O3 -march=native -pthread -I "$root/include" "$root/benchmarks/peers/loss_measure.cpp" -o "$build/loss_measure"
exec "$python" "$root/benchmarks/peers/torch_losses.py" --ours "$build/loss_measure" "$@"
