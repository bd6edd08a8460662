# Sourced by the other scripts: the virtual environment, the right MLX build, the fast BLAS.
#
#   OMLXD_PYTHON  interpreter to build the environment with (default: the best one found)
#   OMLXD_VENV    the environment (default .venv; one given here is never rebuilt from scratch)
#   OMLXD_MLX     cpu or cuda, on Linux (default cpu)
#
# Written for bash 3.2 as well, which is what macOS has.

# The folder of the caller: relative paths in the arguments are relative to it.
from=$PWD
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
venv=${OMLXD_VENV:-.venv}
bin=$venv/bin

say() { printf '%s\n' "==> $*"; }

die() {
  printf '%s\n' "error: $*" >&2
  exit 1
}

mlx_build() {
  case "$(uname -s)/${OMLXD_MLX:-}" in
    Darwin/) echo metal ;;
    Linux/ | Linux/cpu) echo cpu ;;
    Linux/cuda) echo cuda ;;
    *) die "OMLXD_MLX=${OMLXD_MLX:-} on $(uname -s): MLX has builds for macOS (leave it unset) and Linux (cpu or cuda)" ;;
  esac
}

# Whether this interpreter exists and can run the project.
fits() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
  local python
  for python in ${OMLXD_PYTHON:+"$OMLXD_PYTHON"} python3.13 python3.12 python3.14 python3.11 python3; do
    if fits "$python" && "$python" -c 'import ensurepip, venv' 2>/dev/null; then
      echo "$python"
      return
    fi
    [ "$python" != "${OMLXD_PYTHON:-}" ] || die "OMLXD_PYTHON=$python is not Python 3.11 or newer with venv"
  done
  case "$(uname -s)" in
    Darwin) die "no Python 3.11 or newer was found. Install one (python.org, or: brew install python@3.13) or name it with OMLXD_PYTHON" ;;
    *) die "no Python 3.11 or newer with venv was found. Install one (Debian, Ubuntu: apt-get install python3 python3-venv) or name it with OMLXD_PYTHON" ;;
  esac
}

make_venv() {
  local python
  if [ -n "${OMLXD_VENV:-}" ] && [ -e "$venv" ]; then
    die "OMLXD_VENV=$venv exists but is no environment of Python 3.11 or newer with MLX for $(mlx_build)"
  fi
  python=$(find_python)
  if [ "$(uname -s)" = Darwin ] && [ "$("$python" -c 'import platform; print(platform.machine())')" != arm64 ]; then
    die "$python is built for Intel, and MLX needs Apple silicon. Name an arm64 Python with OMLXD_PYTHON"
  fi
  say "making $venv with $("$python" -V)"
  # First an invalid stamp: after an interruption, half of the packages would else count as all.
  [ ! -e "$venv/.omlxd-stamp" ] || echo "being cleared" >"$venv/.omlxd-stamp"
  rm -rf "$venv/lib"
  "$python" -m venv --clear "$venv"
}

# An environment has no pip when its creation was interrupted.
need_pip() {
  "$1" -m pip --version >/dev/null 2>&1 || "$1" -m ensurepip >/dev/null
}

# prepare [extra ...]: install the project, its MLX build and these extras into the environment.
# Does nothing when the stamp says that all are installed.
prepare() {
  local build key extra extras missing stamp
  build=$(mlx_build)
  stamp=$venv/.omlxd-stamp
  key="$build $(cksum <pyproject.toml) $root"
  missing=
  for extra in "$@"; do
    grep -qsx "extra $extra" "$stamp" || missing=1
  done
  if fits "$bin/python" && grep -qsxF "$key" "$stamp" && [ -z "$missing" ]; then
    return
  fi
  # Two builds of MLX overwrite each other's files.
  if ! fits "$bin/python" || { [ -e "$stamp" ] && ! grep -q "^$build " "$stamp"; }; then
    make_venv
  fi
  [ "$build" = metal ] || extras=$build
  for extra in "$@"; do
    extras=${extras:+$extras,}$extra
  done
  say "installing omlxd${extras:+[$extras]} and what it needs (a minute or two the first time)"
  # An invalid stamp, in case the installation is interrupted.
  echo "$build being installed" >"$stamp"
  need_pip "$bin/python"
  PIP_DISABLE_PIP_VERSION_CHECK=1 "$bin/python" -m pip install -e ".${extras:+[$extras]}" 2>&1 |
    tee "$venv/install.log" | show_steps ||
    die "pip failed; all it said is in $venv/install.log, and it ends with
$(tail -n 12 "$venv/install.log")"
  {
    echo "$key"
    [ $# -eq 0 ] || printf 'extra %s\n' "$@"
  } >"$stamp"
}

# Keep only the lines of pip's output that show its progress.
show_steps() {
  local line
  while IFS= read -r line; do
    case $line in
      *Downloading*.whl* | *Downloading*.tar.gz* | Installing*) printf '    %.110s\n' "${line#"${line%%[! ]*}"}" ;;
    esac
  done
}

openblas() {
  local file
  for file in "/usr/lib/$(uname -m)-linux-gnu/openblas-pthread/libopenblas.so.0" \
    /usr/lib64/libopenblasp.so.0 /usr/lib/libopenblas.so.0; do
    if [ -e "$file" ]; then
      echo "$file"
      return
    fi
  done
  return 1
}

install_openblas() {
  local log=$venv/openblas.log
  if [ -e "$log" ] || [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    return 1
  fi
  say "installing OpenBLAS with apt-get (package libopenblas0-pthread)"
  apt_install libopenblas0-pthread >"$log" 2>&1 ||
    { apt update && apt_install libopenblas0-pthread; } >>"$log" 2>&1 ||
    { say "apt-get could not install it (see $log); going on without"; return 1; }
}

apt() { DEBIAN_FRONTEND=noninteractive timeout 300 apt-get -o DPkg::Lock::Timeout=60 "$@" </dev/null; }

apt_install() { apt install -y --no-install-recommends "$1"; }

# On Linux, makes the CPU build of MLX use OpenBLAS instead of the reference BLAS, if it can.
use_openblas() {
  local file
  [ "$(mlx_build)" = cpu ] || return 0
  if file=$(openblas) || { install_openblas && file=$(openblas); }; then
    say "OpenBLAS: $file (float32 prefill is about 25 times as fast with it)"
    case ":${LD_PRELOAD:-}:" in
      *":$file:"*) ;;
      *) export LD_PRELOAD=$file${LD_PRELOAD:+:$LD_PRELOAD} ;;
    esac
  else
    say "no OpenBLAS: long prompts are about 25 times slower than need be (on Debian and Ubuntu: apt-get install libopenblas0-pthread)"
  fi
}
