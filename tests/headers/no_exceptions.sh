#!/bin/sh
# no_exceptions.sh COMPILER FLAGS...: every header compiles without exceptions and RTTI, and an error reaches the program's handler.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

"$@" -O1 -fno-exceptions -fno-rtti -DHEDDLE_NO_EXCEPTIONS "$(dirname "$0")/no_exceptions.cpp" -o "$dir/program"
message=$("$dir/program") && { echo "the program ended as if nothing had happened"; exit 1; }
echo "$message"
case $message in
    *"argument 'width'"*"3"*) ;;
    *) echo "the handler did not get the message"; exit 1 ;;
esac
