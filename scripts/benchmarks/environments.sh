#!/bin/sh
# Make the virtual environments that contenders of other frameworks run in, for what=training of scripts/benchmark.py.
#
#   sh scripts/benchmarks/environments.sh <folder>
#
# A second call makes what is missing or was left half-made. HOOKLINE_PYTHON=<interpreter> chooses the Python, 3.11 or
# 3.12. They take some gigabytes. Delete <folder> to undo it.
set -eu

window="3.11 or 3.12"
usage="sh scripts/benchmarks/environments.sh <folder>"

fail() {
    echo "environments: $1" >&2
    exit 2
}

is_supported() {
    "$1" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' >/dev/null 2>&1
}

find_python() {
    if [ -n "${HOOKLINE_PYTHON:-}" ]; then
        is_supported "$HOOKLINE_PYTHON" || fail "HOOKLINE_PYTHON=$HOOKLINE_PYTHON is not a Python $window with venv."
        echo "$HOOKLINE_PYTHON"
        return
    fi
    for candidate in python3.12 python3.11 python3 python; do
        if is_supported "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "found no Python $window with venv. Install one, or name it: HOOKLINE_PYTHON=/path/to/python3.12 $usage"
}

# While the file "incomplete" is there, nobody takes the environment for a whole one: see scripts/benchmarks/worker.py.
make_environment() {
    place=$folder/$1
    shift
    if [ -e "$place/incomplete" ]; then
        rm -rf "$place"
    elif [ -x "$place/bin/python" ]; then
        echo "environments: $place is there already"
        return
    elif [ -e "$place" ]; then
        fail "$place exists and is not a virtual environment. Move it away or delete it, then run this again."
    fi
    echo "environments: making $place"
    { mkdir "$place" && touch "$place/incomplete"; } || fail "$place cannot be made. Give a folder that can be written."
    "$python" -m venv "$place" || fail "$python could not make the virtual environment $place; the reason stands above."
    "$place/bin/python" -m pip --disable-pip-version-check install --quiet "$@" ||
        fail "the installation into $place failed; the reason stands above. Run this again to start it over."
    rm "$place/incomplete"
}

[ $# = 1 ] || fail "got $# arguments. Expected a folder: $usage"
folder=$1
case $folder in
-* | "") fail "got '$folder'. Expected a folder: $usage" ;;
esac
python=$(find_python) || exit 2
mkdir -p "$folder" 2>/dev/null || fail "$folder cannot be made a folder. Give another: $usage"

make_environment torch torch numpy
make_environment larq larq==0.13.3 "tensorflow==2.21.*" "tf_keras==2.21.*" setuptools
make_environment tfmot tensorflow-model-optimization==0.8.0 "tensorflow==2.21.*" "tf_keras==2.21.*" setuptools
