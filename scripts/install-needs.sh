#!/bin/sh
# Installs what building and testing need beside Rust, with the system's package manager. Does nothing where all is there.
set -eu

missing=""
need() { # need COMMAND PACKAGE
    command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}

need cargo cargo-from-https://rustup.rs
case "$missing" in
    *rustup*) echo "tollgate needs Rust 1.88 or newer: see https://rustup.rs" >&2; exit 1 ;;
esac
need cmake cmake # zlib-ng, which pingora builds
need cc gcc      # zlib-ng, zstd, mimalloc
need c++ g++
need redis-server redis-server # tests of what is kept in Redis
need chromium chromium             # the test of the page on the admin port
need faketime faketime         # the test of a gateway whose clock is ahead
need systemd-analyze systemd   # the test of deploy/systemd
imports() { # imports PYTHON MODULE
    "$1" -c "import $2" >/dev/null 2>&1
}
# a client library for tests of what clients are told
imports python3 urllib3 || imports /usr/bin/python3 urllib3 || missing="$missing python3 python3-urllib3"
[ -n "$missing" ] || exit 0

command -v apt-get >/dev/null 2>&1 || {
    echo "please install with your package manager, then run this again:$missing" >&2
    exit 1
}
as_root=""
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 || { echo "not root and no sudo; please install:$missing" >&2; exit 1; }
    as_root="sudo"
fi
echo "installing what is missing:$missing"
$as_root apt-get update -q
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -q --no-install-recommends $missing
