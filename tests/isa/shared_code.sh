#!/bin/sh
# shared_code.sh DIR... : the objects in each directory are one unit; the last unit is compiled for the plain processor. A weak function that
# two units define must not contain instructions beyond the plain instruction set, because the linker keeps either copy for both.
set -eu

weak() { nm --defined-only "$1"/*.o | awk '$2 == "W" || $2 == "V" || $2 == "u" {print $3}' | sort -u; }

shared=$(for unit in "$@"; do weak "$unit"; done | sort | uniq -d)
[ -n "$shared" ] || echo "The units share no weak symbol."

leaks=$(for unit in "$@"; do
    for object in "$unit"/*.o; do
        objdump --disassemble --no-show-raw-insn "$object" | awk -v unit="${unit##*/}" -v names="$shared" '
            BEGIN { count = split(names, list, "\n"); for (i = 1; i <= count; ++i) is_shared[list[i]] = 1 }
            /^[0-9a-f]+ <.*>:$/ { name = substr($2, 2, length($2) - 3); next }
            (name in is_shared) && $2 ~ /^(v[a-z]|andn|bextr|bls[ir]|blsmsk|bzhi|mulx|pdep|pext|rorx|sarx|shlx|shrx|lzcnt|popcnt|movbe|k[a-z]+[bwdq]$)/ \
                && !(name in said) { said[name] = 1; print name, "in unit", unit ":", $2 }'
    done
done | sort -u)

if [ -n "$leaks" ]; then
    echo "Weak functions that several units share and that need more than the plain instruction set:"
    echo "$leaks" | c++filt
    exit 1
fi
echo "$shared" | grep -c . | sed 's/$/ shared weak symbols, all plain./'
