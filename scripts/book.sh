#!/bin/sh
# Makes a book of docs/ and the pages at the top in target/book, and fails where mdBook warns or a link leads nowhere.
# Installs mdBook in target/tools where there is none; after that it needs no network.
set -eu
cd "$(dirname "$0")/.."
version=0.5.4
PATH="$PWD/target/tools/bin:$PATH"
case $(mdbook --version 2>/dev/null) in
    "mdbook v$version") ;;
    *) cargo install --quiet --locked --force --root target/tools --target-dir target/tools/build \
        --no-default-features --features search mdbook@$version ;;
esac

# the pages keep their places, so that links from one to another lead there in the book as they do here
source=target/book-src
rm -rf "$source" target/book
mkdir -p "$source"
cp -R docs config deploy dashboards Dockerfile ./*.md LICENSE "$source"
mv "$source/docs/book.toml" "$source"
sed -e 's|](|](docs/|' -e 's|](docs/\.\./|](|' "$source/docs/SUMMARY.md" >"$source/SUMMARY.md"
rm "$source/docs/SUMMARY.md"

said=$(mdbook build "$source" 2>&1) || { echo "$said" >&2; exit 1; }
case $said in *WARN* | *ERROR*) echo "$said" >&2; exit 1 ;; esac
python3 scripts/book-links.py target/book
echo "target/book/index.html"
