#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the Debian packages of the commit, installs them on this system, looks
# whether each works, and purges them.
#
#   sudo tools/debian_packages.sh [DIRECTORY]
#
# DIRECTORY keeps the packages. If it has them already, they are not built. The
# packages for the Python of the distribution need an OpenStack that Debian may
# not have: apt must then refuse them, and an empty package stands for what they
# need. What they do is tried with the OpenStack of PyPI.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v dpkg-buildpackage >/dev/null; then
  echo 'Skipped: dpkg-buildpackage is not there (apt-get install dpkg-dev).'
  exit
fi
if [[ $EUID != 0 ]]; then
  echo 'Run this as root: it installs packages.' >&2
  exit 2
fi
all=(nova-reaper python3-nova-pending python3-osc-pending
     python3-pending-dashboard)
for each in "${all[@]}"; do
  if dpkg-query --show "$each" >/dev/null 2>&1; then
    echo "$each is installed, and this would purge it: use another system." >&2
    exit 2
  fi
done
work=$(mktemp -d)
debs=$(realpath "${1:-$work}")
trap 'for each in "${all[@]}" openstack-stand-in; do
        apt-get -qq -y purge "$each" >/dev/null 2>&1 || true
      done
      rm -rf "$work"' EXIT

fail() { echo "FAILED: $*" >&2; exit 1; }
# apt tells why only if it fails.
apt() {
  DEBIAN_FRONTEND=noninteractive apt-get -y --no-install-recommends "$@" \
    >"$work/apt" 2>&1 || { cat "$work/apt"; return 1; }
}
deb() { echo "$debs/$1"_*.deb; }
gone() {
  apt purge "$@" || fail "$* cannot be purged"
  for each in "$@"; do
    if dpkg-query --show "$each" 2>/dev/null; then
      fail "$each is still there"
    fi
  done
}

if ! compgen -G "$debs/nova-reaper_*.deb" >/dev/null; then
  git clone --quiet . "$work/tree"
  apt build-dep "$work/tree"
  (cd "$work/tree" && dpkg-buildpackage -us -uc -b) >"$work/log" 2>&1 ||
    { tail -n 40 "$work/log"; fail 'the packages cannot be built'; }
  mkdir -p "$debs"
  [[ $debs == "$work" ]] || mv "$work"/*.deb "$debs"
fi

# The service, and its user.
apt install "$(deb nova-reaper)"
nova-reaper --help >/dev/null
id nova-reaper >/dev/null
[[ $(stat -c '%a %G' /etc/nova-reaper/nova-reaper.conf) == '640 nova-reaper' ]] ||
  fail 'other users can read the configuration'
for each in bootstrap haproxy.cfg nova-reaper.json nova-reaper.rules.yaml; do
  [[ -s /usr/share/nova-reaper/$each ]] || fail "there is no $each"
done
for each in nova-reaper.conf policy.yaml; do
  [[ -n $(zcat -f /usr/share/doc/nova-reaper/examples/$each*) ]] ||
    fail "there is no sample $each"
done
systemd-analyze verify nova-reaper.service || fail 'the unit is in error'
if systemctl is-enabled --quiet nova-reaper; then
  fail 'nova-reaper is enabled with a configuration that nobody has made'
fi
# It gets as far as the address of the sample, which this machine does not have.
code=0
runuser -u nova-reaper -- timeout 30 nova-reaper run \
  --config-file /etc/nova-reaper/nova-reaper.conf >"$work/run" 2>&1 || code=$?
grep -q 192.0.2.10 "$work/run" ||
  { cat "$work/run"; fail "nova-reaper does not start: exit code $code"; }
echo '# changed' >>/etc/nova-reaper/nova-reaper.conf
mkdir -p /var/lib/nova-reaper
apt install --reinstall "$(deb nova-reaper)"
grep -q '# changed' /etc/nova-reaper/nova-reaper.conf ||
  fail 'a new package takes the configuration away'
gone nova-reaper
for each in /opt/nova-reaper /etc/nova-reaper /var/lib/nova-reaper \
            /usr/bin/nova-reaper /usr/share/nova-reaper; do
  if [[ -e $each || -L $each ]]; then fail "the purge leaves $each"; fi
done
echo 'nova-reaper: installed, started, purged'

# The packages for the Python of the distribution.
for each in "${all[@]:1}"; do
  if apt-get --simulate install "$(deb "$each")" >"$work/apt" 2>&1; then
    echo "$each: apt takes it with the OpenStack of this system"
  else
    grep -m 1 'Depends:' "$work/apt" || { cat "$work/apt"; fail "$each"; }
  fi
done
mkdir -p "$work/stand-in/DEBIAN"
cat >"$work/stand-in/DEBIAN/control" <<EOF
Package: openstack-stand-in
Version: 1
Architecture: all
Maintainer: nova-pending maintainers <nova-pending@localhost>
Provides: python3-nova (= 3:34.0.0), python3-openstackclient (= 8.0.0),
 python3-django-horizon (= 3:26.0.0), python3-prometheus-client (= 0.20.0)
Description: stands for an OpenStack that has its files in another place
EOF
sed -i "s/python3-nova (= 3:/python3-nova (= $(
  dpkg-deb -f "$(deb python3-nova-pending)" Depends |
    sed -E 's/.*>= (([0-9]:)?)33.*/\1/')/" "$work/stand-in/DEBIAN/control"
dpkg-deb --build "$work/stand-in" "$debs/openstack-stand-in.deb" >/dev/null
packages=("$debs/openstack-stand-in.deb")
for each in "${all[@]:1}"; do packages+=("$(deb "$each")"); done
apt install "${packages[@]}"
rm "$debs/openstack-stand-in.deb"

/usr/bin/python3 -m venv --system-site-packages "$work/venv"
"$work/venv/bin/pip" install --quiet --constraint constraints.txt \
  nova python-openstackclient
# nova of PyPI is 34, and both are found from the environment.
"$work/venv/bin/python" /usr/bin/nova-pending status >"$work/status" ||
  { cat "$work/status"; fail 'nova-pending is not laid over Nova'; }
cat "$work/status"
"$work/venv/bin/openstack" pending list --help >"$work/help" ||
  { cat "$work/help"; fail 'the openstack client lacks the commands'; }
site=/usr/lib/python3/dist-packages
for each in project admin; do
  compgen -G "$site/openstack_dashboard/local/enabled/_*_${each}_*" >/dev/null ||
    fail "the panel of $each is not enabled"
done
[[ -s $site/pending_dashboard/locale/de/LC_MESSAGES/django.mo ]] ||
  fail 'the German catalogue is not compiled'
gone "${all[@]:1}" openstack-stand-in
left=$(find $site /usr/bin -name '*nova_pending*' -o -name 'nova-pending' -o \
  -name 'osc_pending*' -o -name 'pending_dashboard*')
[[ -z $left ]] || fail "the purge leaves $left"
NOVA_PENDING=on "$work/venv/bin/python" -c 'import nova.version, sys
assert "nova_pending" not in sys.modules'
echo "${all[*]:1}: installed, laid over Nova, purged"
