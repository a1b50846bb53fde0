#!/usr/bin/env bash
# Makes the virtual environment DIRECTORY, or brings it up to date, with what pyproject.toml asks for: the build backend and
# the libraries of the tests. Does nothing when they are there; else needs PyPI.
#
#   environment.sh DIRECTORY
#
# PYTHON names the interpreter (default: python3), 3.11 or newer, with venv and ensurepip.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
venv="$1"
python="$venv/bin/python"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

fail() {
    echo "$1" >&2
    exit 1
}

# An interpreter that is not there any more leaves a link that leads nowhere.
if ! "$python" -m pip --version >/dev/null 2>&1; then
    base="${PYTHON:-python3}"
    command -v "$base" >/dev/null || fail "no $base, expected Python 3.11 or newer"
    "$base" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "$("$base" --version), expected 3.11 or newer"
    "$base" -c 'import venv, ensurepip' 2>/dev/null || fail "$base lacks venv or ensurepip (package python3-venv of Debian)"
    rm -rf "$venv"
    mkdir -p "$(dirname "$venv")"
    "$base" -m venv "$venv"
fi
needed=$("$python" - "$here/pyproject.toml" <<'PY'
import sys, tomllib
project = tomllib.load(open(sys.argv[1], "rb"))
print("\n".join(project["build-system"]["requires"] + project["project"]["optional-dependencies"]["test"]))
PY
)
stamp="$venv/needed.txt"
if [[ ! -f "$stamp" || "$(cat "$stamp")" != "$needed" ]]; then
    # Words are split on purpose: one requirement each.
    "$python" -m pip install --quiet $needed
    printf '%s' "$needed" >"$stamp"
fi
