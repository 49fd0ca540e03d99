#!/bin/sh
# no_static_state.sh COMPILER FLAGS...: a unit that includes every header has no initialiser that runs before main and no writable data.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

echo '#include "everything.hpp"' >"$dir/everything.cpp"
"$@" -O0 -c "$dir/everything.cpp" -o "$dir/everything.o"
if objdump --section-headers "$dir/everything.o" | grep -E '\.(init_array|ctors|tbss|tdata)'; then
    echo "static initialisation or thread-local data"; exit 1
fi
if nm --demangle "$dir/everything.o" | grep -E ' [BbDdGgSs] '; then
    echo "writable data"; exit 1
fi
