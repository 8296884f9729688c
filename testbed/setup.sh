#!/bin/sh
# Makes the checkout ready to run: Debian packages, a virtual environment, the fake CUDA libraries.
# Can be run again at any time; takes about a second when nothing is to be done.
# With --databases also the servers that the tests of the history run against.
set -eu
umask 022
root=$(cd "$(dirname "$0")/.." && pwd -P)
cd "$root"

packages="slurm-wlm slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge
 lua-socket lua-cjson lua5.1 python3-venv g++ make procps squashfuse squashfs-tools"
[ "${1:-}" != --databases ] || packages="$packages mariadb-server postgresql"
sources="settings estimator history slurm_plugin prolog testbed etc"

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

install_packages() {
  command -v dpkg-query >/dev/null || { say "not Debian: the tests need these, or what they are called here:" $packages; return 0; }
  missing=
  for package in $packages; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing="$missing $package"
  done
  [ -z "$missing" ] && return 0
  [ "$(id -u)" = 0 ] || { say "not root, so most tests are skipped; to be installed: apt-get install$missing"; return 0; }
  say "installing$missing"
  log=$(mktemp)
  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing; } \
    >"$log" 2>&1 || { tail -n 20 "$log" >&2; die "apt-get failed; all of its output: $log"; }
  rm -f "$log"
}

# Jobs on the test cluster run as ordinary users and need this Python and the packages in it.
others_can_read() {
  [ "$(id -u)" = 0 ] || return 0
  setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all \
    test -x "$root" -a -r settings/__init__.py -a -r estimator/tracer/inject/sitecustomize.py 2>/dev/null
}

digest() { find "$@" -type f ! -name '*.pyc' ! -name '*.so*' -exec sha256sum {} + 2>/dev/null | sort -k 2 | sha256sum | cut -d ' ' -f 1; }

install_packages

python=/usr/bin/python3 # not one below a home folder: ordinary users could not run it
[ -x $python ] || python=$(command -v python3) || die "there is no python3"
$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "$python is older than Python 3.11"

if others_can_read; then
  venv=$root/.venv
  mode=editable
  [ ! -L .venv ] || rm .venv
  build_inputs="pyproject.toml setup.py estimator/fake_cuda"
else
  place=/var/tmp/gpumem-$(printf %s "$root" | sha256sum | cut -c 1-12)
  [ -d "$place" ] || mkdir -m 755 "$place"
  [ ! -L "$place" ] && [ -O "$place" ] || die "$place belongs to somebody else; remove it"
  venv=$place/venv
  mode=copied
  [ -L .venv ] || rm -rf .venv
  ln -sfn "$venv" .venv
  build_inputs="pyproject.toml setup.py $sources"
fi

mkdir -p "$venv"
exec 9>"$venv/.setup.lock"
flock 9
stamp=$venv/.setup.stamp
dependencies="$mode $(digest pyproject.toml)"
code=$(digest $build_inputs)
[ "$(cat "$stamp" 2>/dev/null)" = "$dependencies $code" ] && [ -x "$venv/bin/python" ] && exit 0

"$venv/bin/python" -m pip --version >/dev/null 2>&1 || { say "making $venv"; $python -m venv "$venv"; }
pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@" ${PIP_ROOT:+--root-user-action=ignore}; }
[ "$(id -u)" = 0 ] && PIP_ROOT=1
case "$(cat "$stamp" 2>/dev/null)" in
  "$dependencies "*) options=--no-deps ;;
  *) options= ; say "installing Python packages; PyTorch is large, the first time takes minutes" ;;
esac
rm -f "$stamp"
say "building gpumem"
if [ $mode = editable ]; then
  pip install $options --editable ".[examples,dev]"
else
  pip install $options ".[examples,dev]"
fi
printf '%s %s\n' "$dependencies" "$code" >"$stamp"
