#!/usr/bin/env bash
# Checks the Rust of the package, installs it into a virtual environment outside the source tree and runs its tests.
# Quick when nothing changed; needs a Rust toolchain, Python 3.11 or newer and, the first time, PyPI.
#
# REGARD_PYTHON_VENV names the environment (default: beside the build products); one with PyTorch in it runs the tests of
# `regard.torch` too. Arguments go to pytest.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$here/target}"
venv="${REGARD_PYTHON_VENV:-$CARGO_TARGET_DIR/python-venv}"
python="$venv/bin/python"
# Where the build backend is looked for.
export PATH="$venv/bin:$PATH"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

mkdir -p "$CARGO_TARGET_DIR"
"$here/environment.sh" "$venv"
cargo fmt --manifest-path "$here/Cargo.toml" --check
# In a folder of its own: what a build backend sets makes cargo build everything anew.
PYO3_PYTHON="$python" CARGO_TARGET_DIR="$CARGO_TARGET_DIR/python-lints" \
    cargo clippy --quiet --locked --release --manifest-path "$here/Cargo.toml" -- -D warnings
"$python" -m pip install --quiet --no-build-isolation --no-deps --force-reinstall "$here"
# From elsewhere, so that the package under test is the one installed and not the sources beside this file.
cd "$CARGO_TARGET_DIR"
exec "$python" -m pytest -q -p no:cacheprovider --rootdir "$here" -c "$here/pyproject.toml" "$here/tests" "$@"
