#!/bin/sh
# Makes a Debian package of a build of tollgate: the program, its systemd unit, manual pages, completions, a first
# configuration and the crates that it is made of. Prints where it is.
#
# usage: scripts/package.sh PROGRAM FOLDER
set -eu
cd "$(dirname "$0")/.."
program=$1 folder=$2
version=$("$program" --version | cut -d ' ' -f 2)
architecture=$(dpkg --print-architecture)
mkdir -p "$folder"
root=$(mktemp -d "$folder/root.XXXXXX")
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
umask 022

tollgate="$root/usr/bin/tollgate"
install -D "$program" "$tollgate"
# binutils' `strip` breaks what BOLT has laid out
"$(rustc --print target-libdir)/../bin/rust-objcopy" --strip-all "$tollgate"
for file in tollgate.service tollgate.socket; do
    install -Dm 644 "deploy/systemd/$file" "$root/usr/lib/systemd/system/$file"
    sed -i -e 's#/usr/local/bin/#/usr/bin/#; /^# .*Install: the program/,/^# \/etc\/systemd/d' "$root/usr/lib/systemd/system/$file"
done
"$tollgate" man "$root/usr/share/man/man1" >/dev/null
gzip -9n "$root"/usr/share/man/man1/*
mkdir -p "$root/usr/share/bash-completion/completions" "$root/usr/share/zsh/vendor-completions" \
    "$root/usr/share/fish/vendor_completions.d" "$root/usr/share/doc/tollgate" "$root/etc/tollgate" "$root/DEBIAN"
"$tollgate" completions bash >"$root/usr/share/bash-completion/completions/tollgate"
"$tollgate" completions zsh >"$root/usr/share/zsh/vendor-completions/_tollgate"
"$tollgate" completions fish >"$root/usr/share/fish/vendor_completions.d/tollgate.fish"
"$tollgate" init --upstream http://127.0.0.1:9000 --folder "$root/etc/tollgate" >/dev/null
install -m 644 LICENSE "$root/usr/share/doc/tollgate/copyright"
scripts/sbom.sh "$root/usr/share/doc/tollgate/tollgate.cdx.json" >/dev/null
gzip -9nc CHANGELOG.md >"$root/usr/share/doc/tollgate/changelog.gz"

# the libraries that the program is linked with, by the packages that have them
mkdir -p "$root/debian" && touch "$root/debian/control"
depends=$(cd "$root" && dpkg-shlibdeps -O usr/bin/tollgate)
depends=${depends#shlibs:Depends=}
rm -r "$root/debian"
sed -e "s/@VERSION@/$version/; s/@ARCHITECTURE@/$architecture/; s/@DEPENDS@/$depends/" deploy/debian/control >"$root/DEBIAN/control"
echo /etc/tollgate/tollgate.yaml >"$root/DEBIAN/conffiles"
for script in postinst prerm postrm; do
    install -m 755 "deploy/debian/$script" "$root/DEBIAN/$script"
done

package="$folder/tollgate_${version}_$architecture.deb"
dpkg-deb --root-owner-group --build "$root" "$package" >/dev/null
echo "$package"
