#!/bin/sh
# Make the virtual environments that contenders of other frameworks run in, for what=training of scripts/benchmark.py.
#
#   sh scripts/benchmarks/environments.sh <folder>
#
# HOOKLINE_PYTHON=<interpreter> chooses the Python, 3.11 or 3.12. They take some gigabytes. Delete <folder> to undo it.
set -eu

folder=${1:?"environments: expected a folder, such as sh scripts/benchmarks/environments.sh environments"}
python=${HOOKLINE_PYTHON:-python3.11}

make_environment() {
    name=$1
    shift
    echo "environments: $folder/$name"
    "$python" -m venv "$folder/$name"
    "$folder/$name/bin/python" -m pip --disable-pip-version-check install --quiet "$@"
}

make_environment torch torch numpy
make_environment larq larq==0.13.3 "tensorflow==2.21.*" "tf_keras==2.21.*" setuptools
make_environment tfmot tensorflow-model-optimization==0.8.0 "tensorflow==2.21.*" "tf_keras==2.21.*" setuptools
