#!/bin/sh
# includes.sh COMPILER INCLUDE_DIR FLAGS...: what each header pulls in. Outside interop/ no header includes Eigen or another library (but for two
# fits, which say why), none includes the expensive parts of the standard library, every one refuses finite-math by way of core/isa.hpp, and a
# room includes lower rooms only.
set -eu
compiler=$1 include=$2
shift 2

# room: the rooms it may include
allowed() {
    case $1 in
        core) echo core ;;
        position | linear | sampling | recurrent) echo "core $1" ;;
        distillation) echo "core sampling $1" ;;
        cache) echo "core position linear sampling distillation recurrent cache" ;;
        attention) echo "core position linear sampling distillation recurrent cache attention" ;;
        eviction | speculative | diffusion | search | monitor)
            echo "core position linear sampling distillation recurrent cache attention $1" ;;
        *) echo ;;
    esac
}

status=0
complain() { echo "$@"; status=1; }

cd "$include"
for header in $(find heddle -name '*.hpp' | sort); do
    case $header in heddle/interop/* | heddle/cuda/* | heddle/distillation/residual_subspace_fit.hpp | heddle/speculative/draft/transition_cache_fit.hpp) continue ;; esac
    flags=
    case $header in *avx512*) flags=-march=x86-64-v4 ;; *avx2*) flags=-march=x86-64-v3 ;; esac
    files=$("$compiler" -std=c++20 "$@" $flags -M -include "$header" -x c++ /dev/null | tr -d '\\' | tr ' ' '\n' | grep /) ||
        { complain "$header: does not preprocess"; continue; }

    foreign=$(echo "$files" | grep -vE '^/usr/(include|lib)/(x86_64-linux-gnu/|gcc/)?(c\+\+/|bits/|sys/|asm|linux/|gnu/|[a-z0-9_-]+\.h$|x86_64)|^/usr/lib/|heddle/|/dev/null' || true)
    [ -z "$foreign" ] || complain "$header includes" $foreign
    heavy=$(echo "$files" | grep -oE '/c\+\+/[0-9]+/(iostream|sstream|fstream|iomanip|regex|random|format|filesystem|map|unordered_map|locale|future)$' || true)
    [ -z "$heavy" ] || complain "$header includes" $heavy
    case $header in
        heddle/core/thread_team.hpp | heddle/cache/page_pool.hpp | heddle/cache/page_storage.hpp) ;;   # they own threads and memory
        *) large=$(echo "$files" | grep -oE '/c\+\+/[0-9]+/(atomic|memory|ostream)$' || true)
           [ -z "$large" ] || complain "$header includes" $large ;;
    esac
    case $header in */detail/*) ;; *) echo "$files" | grep -q 'heddle/core/isa\.hpp$' || complain "$header does not include core/isa.hpp" ;; esac

    room=${header#heddle/}; room=${room%%/*}
    rooms=$(allowed "$room")
    for used in $(echo "$files" | sed -n 's|.*heddle/\([a-z]*\)/.*|\1|p' | sort -u); do
        case " $rooms " in *" $used "*) ;; *) complain "$header includes the room $used" ;; esac
    done
done
exit $status
