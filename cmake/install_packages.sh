#!/bin/sh
# install_packages.sh yes|no < list: installs what this Debian machine lacks of a list "package  what it is for", or says what is missing.
set -eu
install=$1

if ! command -v dpkg-query >/dev/null; then
    echo "Not a Debian system: nothing is installed, the build will say what it lacks."
    exit 0
fi

missing=
while read -r package reason; do
    if ! dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed; then
        [ -n "$missing" ] || echo "Missing packages:"
        printf '  %-24s%s\n' "$package" "$reason"
        missing="$missing $package"
    fi
done
[ -n "$missing" ] || exit 0

if [ "$install" = no ]; then
    echo "Not installed, because of --no-install; the build goes on without them where it can."
    exit 0
fi

as_root=
if [ "$(id -u)" != 0 ]; then
    as_root=sudo
    command -v sudo >/dev/null || { echo "Installing needs root or sudo. With --no-install this step is left out." >&2; exit 1; }
fi
echo "Installing them with apt-get:"
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -q </dev/null
# shellcheck disable=SC2086 # one word per package
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing </dev/null
