#!/bin/sh
# Builds the release preset, runs every benchmark one at a time and merges their JSON:
#   benchmarks/run.sh [--filter REGEX] [--out FILE.json] [--no-install] [--build-dir DIR] [--jobs N] [benchmark arguments...]
# The filter selects benchmarks by name, for instance 'decode/f16/.*rows1/'.
set -eu
cd "$(dirname "$0")/.."

install=yes filter=. out=benchmarks.json build=build/release jobs=$(nproc)
while [ $# -gt 0 ]; do
    case $1 in
        --no-install) install=no ;;
        --filter) filter=$2; shift ;;
        --out) out=$2; shift ;;
        --build-dir) build=$2; shift ;;
        --jobs) jobs=$2; shift ;;
        --help) sed -n '2,4s/^# *//p' "$0"; exit 0 ;;
        --) shift; break ;;
        *) break ;;
    esac
    shift
done

cmake/install_packages.sh "$install" <<'EOF'
g++                 the compiler
cmake               configures the build
ninja-build         runs the build
libbenchmark-dev    the benchmark framework
libopenblas-dev     the matrix product that ours is measured against
libeigen3-dev       headers whose cost of inclusion is measured
libdlpack-dev       the same
jq                  merges the results
EOF

cmake --preset release -B "$build" -DHEDDLE_BUILD_TESTS=OFF -DHEDDLE_BUILD_EXAMPLES=OFF -DHEDDLE_BUILD_BENCHMARKS=ON
cmake --build "$build" --parallel "$jobs"

results=$build/benchmarks/results
rm -rf "$results"
mkdir -p "$results"
for program in "$build"/benchmarks/bin/*; do
    name=${program##*/}
    "$program" --benchmark_list_tests --benchmark_filter="$filter" 2>/dev/null | grep -q . || continue
    echo "== $name"
    OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-2} "$program" --benchmark_filter="$filter" --benchmark_counters_tabular=true \
        --benchmark_out="$results/$name.json" --benchmark_out_format=json "$@"
done

set -- "$results"/*.json
[ -e "$1" ] || { echo "No benchmark matches '$filter'." >&2; exit 1; }
jq -s '{context: .[0].context, benchmarks: map(.context.executable as $program | .benchmarks[] | . + {program: ($program | sub(".*/"; ""))})}' "$@" >"$out"
echo "Wrote $(jq '.benchmarks | length' "$out") results to $out."
