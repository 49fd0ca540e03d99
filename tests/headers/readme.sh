#!/bin/sh
# readme.sh COMPILER FLAGS...: the C++ program in the README compiles.
set -eu
program=$(sed -n '/^```cpp$/,/^```$/{/^```/!p}' "$(dirname "$0")/../../README.md")
[ -n "$program" ] || { echo "the README shows no program"; exit 1; }
printf '%s\n' "$program" | "$@" -fsyntax-only -x c++ -
