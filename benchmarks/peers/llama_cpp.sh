#!/bin/sh
# Speed of the example engine beside llama.cpp and ik_llama.cpp, on the same file and threads (what is measured: engines.py).
#   benchmarks/peers/llama_cpp.sh [--no-install] [--build-dir DIR] [options of engines.py: --threads N, --rounds N, --activations LIST, ...]
# Installs llama-cpp-python (compiled for this processor: some minutes) and ik-llama-cpp-python (a wheel for Python 3.11) in a virtual environment
# of the build tree, and fetches the model there.
set -eu
. "$(dirname "$0")/arguments.sh"

"$root/cmake/install_packages.sh" $install >&2 <<'EOF'
g++                     the compiler
cmake                   configures the build
ninja-build             runs the build
libpcre2-dev            the example engine: pre-tokenisation
nlohmann-json3-dev      the example engine: requests and answers
libcli11-dev            the example engine: its command line
python3-venv            the virtual environment
python3-dev             compiles llama-cpp-python
python3-pip             downloads the model
EOF

python=$build/venv/bin/python
if [ $install = yes ]; then
    [ -x "$python" ] || python3 -m venv "$build/venv"
    "$python" -c 'import llama_cpp' 2>/dev/null || {
        echo "Compiling llama-cpp-python, the engine to compare with" >&2
        CMAKE_ARGS=-DGGML_NATIVE=ON "$python" -m pip install --quiet llama-cpp-python==0.3.36
    }
    "$python" -c 'import ik_llama_cpp' 2>/dev/null || "$python" -m pip install --quiet ik-llama-cpp-python==0.1.5 ||
        echo "ik-llama-cpp-python has no wheel for this Python; its column is left out" >&2
fi
cmake -S "$root" -B "$build/heddle" -G Ninja -D CMAKE_BUILD_TYPE=Release -D CMAKE_CXX_FLAGS=-march=native -D CMAKE_CXX_EXTENSIONS=OFF \
      -D HEDDLE_BUILD_TESTS=OFF -D HEDDLE_BUILD_BENCHMARKS=OFF >/dev/null
cmake --build "$build/heddle" --target llama_measure >&2
model=$build/models/SmolLM2-135M-Instruct.Q4_1.gguf
"$root/examples/llama/fetch_model.sh" "$model"
exec "$python" "$root/benchmarks/peers/engines.py" --model "$model" --ours "$build/heddle/bin/llama_measure" "$@"
