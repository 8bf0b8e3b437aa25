"""Test what importing the package imports, and its public names."""

import importlib
import json
import re
import subprocess
import sys
from importlib import metadata

import pytest

import gumbeltree

UNWANTED = {"typer", "rich", "nltk", "fastapi", "matplotlib", "lightning_fabric"}
ALLOWED = ["gumbeltree", "torch", "numpy", "safetensors", "huggingface_hub", "tokenizers"]


def imported_by(code):
    """Return the packages outside the standard library that a fresh interpreter imports."""
    script = (
        "import json, sys\n"
        "before = {name.partition('.')[0] for name in sys.modules}\n"
        f"{code}\n"
        "after = {name.partition('.')[0] for name in sys.modules} - before\n"
        "print(json.dumps(sorted(after - set(sys.stdlib_module_names))))"
    )
    command = [sys.executable, "-W", "error", "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    # multiprocessing renames the main module
    return set(json.loads(result.stdout.splitlines()[-1])) - {"__mp_main__"}


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def distributions_behind(names):
    """Return the installed distributions that `names` require, recursively, without extras."""
    found, pending = set(), [canonical(name) for name in names]
    while pending:
        name = pending.pop()
        if name in found:
            continue
        try:
            requirements = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        found.add(name)
        if name == "gumbeltree":
            continue
        for requirement in requirements:
            if "extra ==" not in requirement:
                pending.append(canonical(re.match(r"[\w.-]+", requirement)[0]))
    return found


def test_importing_the_package_imports_nothing_else():
    assert imported_by("import gumbeltree") == {"gumbeltree"}


def test_command_line_does_not_import_torch():
    assert "torch" not in imported_by("import gumbeltree.cli")


def test_public_names_import_declared_packages_only():
    packages = imported_by(
        # only training needs Lightning Fabric
        "import gumbeltree\nfor name in set(gumbeltree.__all__) - {'train', 'train_text'}: "
        "getattr(gumbeltree, name)"
    )
    assert {"torch", "numpy", "tokenizers", "safetensors"} <= packages
    assert not packages & UNWANTED
    # torch imports dill if it is installed
    allowed = distributions_behind([*ALLOWED, "dill"])
    homes = metadata.packages_distributions()
    undeclared = {
        package
        for package in packages - {"gumbeltree"}
        if not {canonical(name) for name in homes.get(package, [])} & allowed
    }
    assert not undeclared


def test_kernels_are_imported_lazily():
    # torch may import Triton itself
    imported_by(
        "import sys, gumbeltree.model, gumbeltree.store\nassert not any("
        "name.endswith('kernels') for name in sys.modules if name.startswith('gumbeltree'))"
    )


def test_using_a_model_imports_declared_packages_only():
    packages = imported_by(
        "import tempfile, gumbeltree\n"
        "from gumbeltree.text.tokenizer import treebank_tokenizer\n"
        "config = gumbeltree.ModelConfig(head=gumbeltree.HeadConfig('single', ('no', 'yes')))\n"
        "new = gumbeltree.SentenceModel(config, treebank_tokenizer(['i', 'love']))\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    gumbeltree.save(new, folder)\n"
        "    model = gumbeltree.load(folder)\n"
        "model.encode(['i love this']); model.parse('i love this').svg()\n"
        "model.predict(['i love this'])"
    )
    assert not packages & UNWANTED


def test_loading_a_model_does_not_import_the_compiler():
    imported_by(
        "import sys, gumbeltree.model\n"
        "model = gumbeltree.model.load('sst2-100d')\n"
        "model.predict(['i love this'])\n"
        "assert not {'torch._dynamo', 'triton', 'sympy'} & sys.modules.keys()"
    )


@pytest.mark.parametrize("name", gumbeltree.__all__)
def test_public_names_resolve(name):
    value = getattr(gumbeltree, name)
    assert value is not None
    if name != "__version__":
        assert value.__name__ == name
        assert value.__doc__


def test_public_names_are_all_listed():
    namespace = {}
    exec("from gumbeltree import *", namespace)
    assert set(gumbeltree.__all__) <= set(namespace)
    assert dir(gumbeltree) == sorted(gumbeltree.__all__)
    assert set(gumbeltree._MODULES) == set(gumbeltree.__all__) - {"__version__"}
    assert len(set(gumbeltree.__all__)) == len(gumbeltree.__all__)


def test_unknown_names_raise_errors():
    with pytest.raises(AttributeError, match="module 'gumbeltree' has no attribute 'lode'"):
        _ = gumbeltree.lode
    with pytest.raises(ImportError, match="cannot import name 'lode'"):
        exec("from gumbeltree import lode")


def test_submodules_stay_importable():
    # public names must not shadow modules
    for module in ("config", "model", "store", "tree", "states", "cli", "nn.encoders.gumbel_tree"):
        assert importlib.import_module(f"gumbeltree.{module}").__name__ == f"gumbeltree.{module}"


def test_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", gumbeltree.__version__)
    assert gumbeltree.__version__ == metadata.version("gumbeltree")
