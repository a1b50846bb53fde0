#!/usr/bin/env bash
# Checks the Rust of the package, installs it into a virtual environment outside the source tree and runs its tests.
# Quick when nothing changed; needs a Rust toolchain, Python 3.11 or newer and, the first time, PyPI.
#
# REGARD_PYTHON_VENV names the environment (default: beside the build products); one with PyTorch in it runs the tests of
# `regard.torch` too, and one with mypy checks types. Arguments go to pytest.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$here/target}"
venv="${REGARD_PYTHON_VENV:-$CARGO_TARGET_DIR/python-venv}"
python="$venv/bin/python"
# Where the build backend is looked for.
export PATH="$venv/bin:$PATH"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

# Stubs against the compiled module, the package without PyTorch, and the surface of all of it as others see it.
types() {
    if ! "$python" -c 'import mypy.stubtest' 2>/dev/null; then
        echo "types SKIPPED: no mypy (pip install mypy)"
        return
    fi
    "$python" -m mypy.stubtest regard._native --concise --allowlist "$here/tests/stubs.allow" --ignore-unused-allowlist
    "$python" -m mypy --strict -m regard -m regard.functions -m regard.module -m regard.operator
    if "$python" -c 'import torch' 2>/dev/null; then
        "$python" -m mypy --strict "$here/tests/typed.py"
    else
        echo "types of regard.torch SKIPPED: no PyTorch"
    fi
}

mkdir -p "$CARGO_TARGET_DIR"
"$here/environment.sh" "$venv"
cargo fmt --manifest-path "$here/Cargo.toml" --check
# In a folder of its own: what a build backend sets makes cargo build everything anew.
PYO3_PYTHON="$python" CARGO_TARGET_DIR="$CARGO_TARGET_DIR/python-lints" \
    cargo clippy --quiet --locked --release --manifest-path "$here/Cargo.toml" -- -D warnings
"$python" -m pip install --quiet --no-build-isolation --no-deps --force-reinstall "$here"
# From elsewhere, so that the package under test is the one installed and not the sources beside this file.
cd "$CARGO_TARGET_DIR"
types
exec "$python" -m pytest -q -p no:cacheprovider --rootdir "$here" -c "$here/pyproject.toml" "$here/tests" "$@"
