#!/bin/sh
# Packages a build of tollgate, installs that, starts what it brought, upgrades and purges it, in a layer over this system that
# is thrown away. Needs root, for namespaces of its own.
#
# usage: scripts/package-test.sh PROGRAM
set -eu
cd "$(dirname "$0")/.."
fail() { echo "$1" >&2; exit 1; }
if [ "${2:-}" != inside ]; then
    # what is started and mounted ends with the namespaces
    exec unshare --mount --net --pid --fork --kill-child sh "scripts/package-test.sh" "$1" inside
fi
layer=/mnt
mount -t tmpfs tmpfs "$layer"
mkdir "$layer/upper" "$layer/work" "$layer/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$layer/upper,workdir=$layer/work" "$layer/root"
root=$layer/root
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/run" # where systemd would run
package=$(scripts/package.sh "$1" "$layer")
mv "$package" "$root/one.deb"
# the same in a version that is newer than any
dpkg-deb --raw-extract "$root/one.deb" "$layer/newer"
sed -i 's/^Version: .*/Version: 99.0.0/' "$layer/newer/DEBIAN/control"
dpkg-deb -Znone --root-owner-group --build "$layer/newer" "$root/two.deb" >/dev/null
within() { chroot "$root" "$@"; }
python3 -c 'import fcntl, socket, struct
# brings the loopback interface up: SIOCSIFFLAGS, IFF_UP
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh14x", b"lo", 1))'

within dpkg --install /one.deb
within systemd-analyze verify /usr/lib/systemd/system/tollgate.service
within zcat /usr/share/man/man1/tollgate-run.1.gz | grep -q '^\.TH' || fail "no manual"
run=$(sed -n 's/^ExecStart=//p' "$root/usr/lib/systemd/system/tollgate.service")
chroot "$root" $run &
gateway=$!
for attempt in $(seq 200); do
    if within tollgate health >/dev/null 2>&1; then break; fi
    sleep 0.1
done
answers=$(for request in $(seq 25); do curl -s -o /dev/null -w ' %{http_code}' http://127.0.0.1:8080/; done)
# there is no upstream, and a limit
case $answers in *502*429*) ;; *) fail "the installed gateway answers$answers" ;; esac
kill $gateway
wait $gateway || fail "the installed gateway ends with $?"

echo '# of an operator' >>"$root/etc/tollgate/tollgate.yaml"
within dpkg --install /two.deb </dev/null
within dpkg-query --show --showformat '${Version} ${Status}\n' tollgate | grep -q '^99.0.0 install ok installed$' || fail "not upgraded"
grep -q '^# of an operator$' "$root/etc/tollgate/tollgate.yaml" || fail "an upgrade changed the configuration"

mkdir -p "$root/var/lib/private/tollgate"
within dpkg --remove tollgate
[ ! -e "$root/usr/bin/tollgate" ] || fail "the program stays"
[ -e "$root/etc/tollgate/tollgate.yaml" ] || fail "the configuration does not outlive a removal"
within dpkg --purge tollgate
left=$(find "$layer/upper/etc" "$layer/upper/usr" "$layer/upper/var/lib" -name '*tollgate*' -not -type c)
[ -z "$left" ] || fail "a purge leaves $left"
echo "installed, started, upgraded, removed and purged"
