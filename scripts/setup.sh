#!/bin/sh
# Create .venv with the locked dependencies and this project in it.
#
#   sh scripts/setup.sh         what runs need
#   sh scripts/setup.sh test    and what the tests, the linter and the type checker need
#
# A second call changes nothing while the locks are the same. HOOKLINE_PYTHON=<interpreter> chooses the Python.
set -eu

cd "$(dirname "$0")/.."
extra=${1:-runtime}
environment_python=.venv/bin/python
stamp=.venv/hookline-setup
window="3.11, 3.12 or 3.13"

fail() {
    echo "setup: $1" >&2
    exit 2
}

is_supported() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
}

find_python() {
    if [ -n "${HOOKLINE_PYTHON:-}" ]; then
        is_supported "$HOOKLINE_PYTHON" || fail "HOOKLINE_PYTHON=$HOOKLINE_PYTHON is not a Python $window."
        echo "$HOOKLINE_PYTHON"
        return
    fi
    for candidate in python3.13 python3.12 python3.11 python3 python; do
        if is_supported "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    found=$(python3 --version 2>/dev/null || echo "no python3")
    fail "found $found, but Hookline needs Python $window. Install one, or name it: HOOKLINE_PYTHON=/path/to/python3.12 sh scripts/setup.sh"
}

# Debian and Ubuntu ship Python without ensurepip; the package python3.X-venv brings it.
require_venv() {
    "$1" -c 'import ensurepip, venv' >/dev/null 2>&1 && return
    package=$("$1" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    command -v apt-get >/dev/null 2>&1 || fail "$1 has no venv module. Install the system package that brings it ($package)."
    if [ "$(id -u)" = 0 ]; then as_root=; else as_root=sudo; fi
    echo "setup: installing $package"
    $as_root apt-get update -qq >/dev/null &&
        $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package" >/dev/null ||
        fail "apt-get could not install $package, which $1 needs for virtual environments. Install it, then run this again."
}

fingerprint() {
    cat requirements.lock requirements-build.lock requirements-test.lock | cksum
    "$1" -c 'import sys; print(sys.version.split()[0])'
    pwd -P # scripts in .venv/bin hold its path, so a moved tree needs a new one
}

# The build tools come first, so that whatever is built from source is built by locked, hashed tools.
install_locked() {
    pip="$environment_python -m pip --disable-pip-version-check install --quiet --no-build-isolation"
    $pip --require-hashes -r requirements-build.lock &&
        $pip --require-hashes -r "$1" &&
        $pip --no-deps -e . ||
        fail "the installation into .venv failed; the reason stands above. Run this again to start over."
}

case $extra in
runtime) lock=requirements.lock ;;
test) lock=requirements-test.lock ;;
*) fail "got '$extra', expected nothing or 'test'." ;;
esac

python=$(find_python) || exit 2
wanted=$(fingerprint "$python")

if [ -d .venv ] && [ ! -f "$stamp" ]; then
    fail ".venv exists and was not made by this script. Move it away or delete it, then run this again."
fi
if [ -f "$stamp" ]; then
    case $(cat "$stamp") in
    "$wanted
test" | "$wanted
$extra") exit 0 ;;
    "$wanted
runtime") ;; # the test lock holds the same versions and more: add to what is there
    *) rm -rf .venv ;;
    esac
fi

if [ ! -d .venv ]; then
    require_venv "$python"
    echo "setup: creating .venv with $("$python" --version)"
    mkdir .venv
    echo incomplete >"$stamp"
    "$python" -m venv .venv || fail "$python could not create a virtual environment."
fi
echo incomplete >"$stamp"
echo "setup: installing $lock (TensorFlow is large: a few minutes on a slow line)"
install_locked "$lock"
printf '%s\n%s\n' "$wanted" "$extra" >"$stamp"
echo "setup: ready. Use .venv/bin/python"
