#!/bin/sh
# same_bits.sh "PROGRAM UNIT" "PROGRAM UNIT": both must print the same report. What this processor cannot run is emulated; what the emulator
# cannot run either is skipped (77).
set -eu

can_run() {
    case $1 in
        *" v4") set -- avx512f avx512bw avx512cd avx512dq avx512vl ;;
        *" v3" | *" uncontracted" | *" clang") set -- avx2 fma bmi2 f16c ;;
        *) return 0 ;;
    esac
    for flag in "$@"; do
        grep -qw "$flag" /proc/cpuinfo || return 1
    done
}

report() {
    if can_run "$1"; then
        $1
    elif [ "${1##* }" = v4 ] || ! command -v qemu-x86_64 >/dev/null; then
        echo "Neither this processor nor the emulator can run ${1##*/}." >&2
        exit 77
    else
        qemu-x86_64 -cpu max $1
    fi
}

first=$(report "$1") || exit $?
second=$(report "$2") || exit $?
if [ "$first" = "$second" ]; then
    printf '%s\n' "$first" | grep -c . | sed 's/$/ results, the same bits./'
    exit 0
fi
printf '%s\n' "$first" >"${TMPDIR:-/tmp}/bits.$$"
printf '%s\n' "$second" | diff "${TMPDIR:-/tmp}/bits.$$" - || true
rm -f "${TMPDIR:-/tmp}/bits.$$"
exit 1
