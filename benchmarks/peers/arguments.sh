# Sourced by the scripts beside it: options that they share. Sets root, build, install; what is left in $@ belongs to the script's program.
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

# beside_torch PROGRAM: compiles PROGRAM.cpp and installs PyTorch in a virtual environment of the build tree; sets python.
beside_torch() {
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
    ${CXX:-g++} -std=c++20 -O3 -march=native -pthread -I "$root/include" "$root/benchmarks/peers/$1.cpp" -o "$build/$1"
}
