#!/bin/sh
# What drafts are worth: for four kinds of prompt (examples/llama/prompts: quotes from a text, an edit of code, chat, a list said again) and each drafter,
# the emitted tokens per pass, the speed against decoding without drafts, and the share of drafts accepted by slot.
#   examples/compare_drafters.sh [--no-install] [--runs N] [--drafts "lookup suffix auto self:8"] [options of generate, for instance --tokens 128 --activations int16]
# Temperature 0, 256 tokens at most, int8 activations and cache, unless the options say otherwise. Speeds: the best of N runs (3), drafters in turn.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/generate
model=$build/models/SmolLM2-135M-Instruct.Q4_1.gguf

install=yes runs=3 drafts="lookup suffix auto tree:suffix self:8"
while [ $# -gt 0 ]; do
    case $1 in
        --no-install) install=no ;;
        --runs) runs=$2; shift ;;
        --drafts) drafts=$2; shift ;;
        --help) sed -n '2,5s/^# *//p' "$0"; exit 0 ;;
        *) break ;;
    esac
    shift
done
no_install=$([ $install = yes ] || echo --no-install)
echo "jq reads the statistics" | "$root/cmake/install_packages.sh" $install >&2
"$root/examples/generate.sh" $no_install --help >/dev/null
"$root/examples/llama/fetch_model.sh" "$model" >&2

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '%-6s  %-12s %7s %8s %9s  %s\n' prompt draft tokens/s vs_plain per_pass "acceptance by slot (1 2 3 ...)"
for prompt in quote edit chat list; do
    for run in $(seq "$runs"); do
        for draft in none $drafts; do
            "$build/bin/generate" --model "$model" --tokens 256 --activations int8 --cache int8 --draft "$draft" --stats json \
                --prompt-file "$root/examples/llama/prompts/$prompt.txt" "$@" | tail -n 1 >>"$work/$prompt.$draft"
        done
    done
    plain=$(jq -s 'map(.decode_tokens_per_second) | max' "$work/$prompt.none")
    for draft in none $drafts; do
        jq -s -r --arg prompt "$prompt" --arg draft "$draft" --argjson plain "$plain" '
            def fixed(n): . * pow(10; n) | round / pow(10; n) | tostring;
            (map(.decode_tokens_per_second) | max) as $speed
            | [$prompt, $draft, ($speed | fixed(1)), ($speed / $plain | fixed(2)), (.[0].mean_accepted_tokens | fixed(2)),
               (.[0].acceptance_by_slot[:8] | map(fixed(2)) | join(" "))] | @tsv' "$work/$prompt.$draft" |
            while IFS="$(printf '\t')" read -r p d speed ratio pass slots; do
                printf '%-6s  %-12s %7s %8s %9s  %s\n' "$p" "$d" "$speed" "$ratio" "$pass" "$slots"
            done
    done
done
