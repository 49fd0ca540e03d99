#!/bin/sh
# examples.sh ROOM COMPILER FLAGS...: the examples in the headers of a room compile.
#
# An example is the last paragraph of the comment above `#pragma once`, where all its lines are indented by five spaces. What it takes for granted
# is declared in examples/ROOM.hpp: for all headers of the room, or for one in a namespace named after it (codec/int8.hpp: of_codec_int8).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
include=$here/../../include
room=$1
shift

unit=$(mktemp)
trap 'rm -f "$unit"' EXIT
headers=$(cd "$include" && find "heddle/$room" -name '*.hpp' ! -path '*/detail/*' | LC_ALL=C sort)
for header in $headers; do
  awk -v header="$header" -v room="heddle/$room/" '
    /^#pragma once/ { exit }
    /^\/\/$/ { n = 0; prose = 0; next }
    /^\/\/     / { lines[n++] = substr($0, 8); at[n] = NR; next }
    { prose = 1 }
    END {
      if (n == 0 || prose) exit
      name = substr(header, length(room) + 1)
      sub(/\.hpp$/, "", name)
      gsub("/", "_", name)
      print "#include <" header ">" > "/dev/stderr"
      print "namespace examples::of_" name " {\nvoid example() {\nusing namespace heddle;\n#line " at[1] " \"" header "\""
      for (i = 0; i < n; ++i) print lines[i]
      print "}\n}"
    }' "$include/$header" 2>>"$unit.includes" >>"$unit.bodies"
done
[ -s "$unit.bodies" ] || { echo "no header of $room shows an example"; exit 1; }
{ cat "$unit.includes"; echo "#include \"$here/examples/$room.hpp\""; cat "$unit.bodies"; } > "$unit"
rm -f "$unit.includes" "$unit.bodies"
"$@" -fsyntax-only -Wno-unused -Wno-shadow -x c++ "$unit"
