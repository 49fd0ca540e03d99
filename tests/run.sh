#!/bin/sh
# Configures, builds and runs all tests:
#   tests/run.sh [--no-install] [--preset NAME] [--build-dir DIR] [--jobs N] [ctest arguments...]
set -eu
cd "$(dirname "$0")/.."

install=yes preset=dev build='' jobs=$(nproc)
[ "$jobs" -le 2 ] || jobs=$((jobs - 1))
while [ $# -gt 0 ]; do
    case $1 in
        --no-install) install=no ;;
        --preset) preset=$2; shift ;;
        --build-dir) build=$2; shift ;;
        --jobs) jobs=$2; shift ;;
        --help) sed -n '2,3s/^# *//p' "$0"; exit 0 ;;
        --) shift; break ;;
        *) break ;;
    esac
    shift
done
: "${build:=build/$preset}"

cmake/install_packages.sh "$install" <<'EOF'
g++                     the compiler
cmake                   configures the build
ninja-build             runs the build
libgtest-dev            the test framework
googletest              the same as source, for tests compiled for another architecture
libbenchmark-dev        the benchmark framework: the benchmarks must compile
libopenblas-dev         what they compare with
libeigen3-dev           foreign tensors: Eigen
libdlpack-dev           foreign tensors: DLPack
libboost-context-dev    fibers, which stand for device threads in the emulated kernels
libpcre2-dev            the example engine: pre-tokenisation
nlohmann-json3-dev      the example engine: its statistics
libcli11-dev            the example engine: its command line
python3-pip             the example engine: fetches the model it is tested with
clang                   the second compiler that every header must pass
libomp-dev              OpenMP for that compiler
binutils                looks at symbols and instructions
qemu-user               runs programs for processors this machine is not
g++-aarch64-linux-gnu   the cross compiler for 64-bit Arm
libc6-dev-arm64-cross   its C library
EOF

cmake --preset "$preset" -B "$build"
cmake --build "$build" --parallel "$jobs"
exec ctest --test-dir "$build" --output-on-failure --parallel "$jobs" "$@"
