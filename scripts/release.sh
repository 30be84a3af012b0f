#!/bin/sh
# Makes a release of the commit that is checked out: writes VERSION into Cargo.toml, Cargo.lock and CHANGELOG.md, runs CI,
# commits and tags. A release that CI refuses leaves the tree as it was. Needs no network and pushes nothing.
#
# usage: scripts/release.sh VERSION
set -eu
cd "$(dirname "$0")/.."
refuse() { echo "$1" >&2; exit 1; }
version=${1:-}
echo "$version" | grep -Eq '^[0-9]+\.[0-9]+\.[0-9]+$' || refuse "usage: scripts/release.sh VERSION, like 1.2.0"
[ -z "$(git status --porcelain)" ] || refuse "git status shows changes: commit or remove them first"
! git rev-parse -q --verify "refs/tags/v$version" >/dev/null || refuse "the tag v$version exists already"
grep -q '^## Unreleased$' CHANGELOG.md || refuse "CHANGELOG.md has no section \"Unreleased\""
trap 'git checkout -q -- Cargo.toml Cargo.lock CHANGELOG.md' EXIT
sed -i "s/^version = \".*\"/version = \"$version\"/" Cargo.toml
sed -i "s/^## Unreleased$/## Unreleased\n\n## $version ($(date -u +%Y-%m-%d))/" CHANGELOG.md
cargo update --quiet --workspace --offline
.ci/run
git commit -qam "Release $version"
trap - EXIT
git tag -a "v$version" -m "tollgate $version"
echo "v$version is committed and tagged: git push --follow-tags publishes it"
