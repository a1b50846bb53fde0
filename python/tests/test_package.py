"""The package as others see it: documents that run, stubs that are true."""

from __future__ import annotations

import ast
import copy
import doctest
import importlib.util
import os
import pickle
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import regard
from regard import _native

HERE = Path(__file__).resolve().parent
BLOCKS = re.findall(r"```python\n(.*?)```", (HERE.parent / "README.md").read_text(), re.DOTALL)
HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_TRANSFORMERS = HAS_TORCH and importlib.util.find_spec("transformers") is not None


@pytest.mark.parametrize("block", BLOCKS, ids=[block.split("\n")[0] for block in BLOCKS])
def test_the_readme_runs(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "torch" in block and not HAS_TORCH:
        pytest.skip("no PyTorch here")
    if "transformers" in block and not HAS_TRANSFORMERS:
        pytest.skip("no transformers here")
    exec(compile(block, "README.md", "exec"), {})
    if "print" in block:
        assert "(1, 8, 1024, 64)" in capsys.readouterr().out


@pytest.mark.parametrize("module", [regard, regard.module])
def test_examples_in_docstrings(module: object) -> None:
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert result.attempted > 0 and result.failed == 0


def test_stubs_name_what_there_is() -> None:
    tree = ast.parse((Path(regard.__file__).parent / "_native.pyi").read_text())
    stubs = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    stubs.pop("Facts")
    public = {name for name in dir(_native) if not name.startswith("__")}
    assert set(stubs) == public
    for name, node in stubs.items():
        if isinstance(node, ast.ClassDef):
            members = {member.name for member in node.body if isinstance(member, ast.FunctionDef)}
            seen = {member for member in vars(getattr(_native, name)) if not member.startswith("_")}
            assert {member for member in members if not member.startswith("_")} == seen, name
    assert (Path(regard.__file__).parent / "py.typed").exists()
    facts = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Facts")
    keys = [
        node.target.id for node in facts.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    assert all(list(entry) == keys for entry in regard.mechanisms())


def test_everything_public_is_documented() -> None:
    for name in regard.__all__:
        if name != "__version__":
            assert getattr(regard, name).__doc__, name


def test_operators_can_be_copied_and_pickled() -> None:
    operator = regard.Operator("smgk", causal=True, window=3, seed=5, layout="token_first", keys={"components": 3})
    for other in (copy.deepcopy(operator), pickle.loads(pickle.dumps(operator))):
        assert other.options == operator.options and other.layout == "token_first" and repr(other) == repr(operator)


def test_the_package_needs_no_other() -> None:
    program = "import sys, regard; assert not {'numpy', 'torch'} & set(sys.modules); print(regard.__version__)"
    run = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == regard.__version__


def test_vectors_can_be_kept_narrow() -> None:
    def run(vectors: str) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "REGARD_VECTORS": vectors}
        program = "import numpy, regard; x = numpy.ones((1, 1, 3, 4), 'f4'); print(regard.softmax(x, x, x)[0, 0, 0, 0])"
        return subprocess.run([sys.executable, "-P", "-c", program], env=environment, capture_output=True, text=True)

    assert run("scalar").stdout.strip() == "1.0"
    refused = run("mmx")
    assert refused.returncode != 0
    assert "vectors is mmx, expected one of those that this processor has: scalar" in refused.stderr


def test_the_environment_of_conda_has_what_the_project_asks_for() -> None:
    """Its list in plain lines, as nothing here reads YAML; conda itself was not at hand."""
    lines = (HERE.parent / "environment.yml").read_text().split("dependencies:\n")[1].splitlines()
    listed = {line.removeprefix("  - ") for line in lines if line.startswith("  - ")}
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())
    cargo = tomllib.loads((HERE.parent / "Cargo.toml").read_text())
    expected = {f"python{project['project']['requires-python']}", f"rust>={cargo['package']['rust-version']}"}
    expected |= {*project["build-system"]["requires"], *project["project"]["optional-dependencies"]["test"]}
    assert listed == expected | {"pip", "pip:"} and lines[-2:] == ["  - pip:", "      - ."]
