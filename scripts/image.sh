#!/bin/sh
# Builds the container image `tollgate` and refuses one of 30 MB or more.
#
# usage: scripts/image.sh [PROGRAM]
#   PROGRAM  a release build to take in place of compiling in a container
set -eu
cd "$(dirname "$0")/.."
fail() { echo "$1" >&2; exit 1; }
export DOCKER_BUILDKIT=1
# A newer client builds with a plugin, buildx, and Debian's by itself: the first that can.
docker=""
for client in docker /usr/bin/docker; do
    if "$client" build --help 2>/dev/null | grep -q -- --secret; then docker=$client && break; fi
done
[ -n "$docker" ] || fail "image: no Docker client here builds with BuildKit: install docker-buildx"
if [ -n "${1:-}" ]; then
    install -D "$1" target/image/tollgate
    # binutils' `strip` breaks what BOLT has laid out
    "$(rustc --print target-libdir)/../bin/rust-objcopy" --strip-all target/image/tollgate
    "$docker" build --quiet --tag tollgate --build-arg PROGRAM=ready .
else
    "$docker" build --tag tollgate .
fi
size=$("$docker" image inspect --format '{{.Size}}' tollgate)
echo "the image has $size bytes"
[ "$size" -lt 30000000 ] || fail "image: that is 30 MB or more"
