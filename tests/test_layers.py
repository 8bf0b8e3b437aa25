"""Test that modules import only lower layers, and that the lowest need no torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "gumbeltree"

# from bottom to top; a layer may import itself and those before it
LAYERS = (
    ("plugins",),
    ("answers", "encoded", "extras", "generators"),
    ("atomic", "array_file", "code_version", "registry", "signals", "drawing", "picture"),
    ("threads",),
    ("tree",),
    ("fixed_orders",),
    ("settings",),
    ("parts",),
    ("migrate",),
    ("config", "packaged", "hub"),
    ("peers",),
    ("text",),
    ("store",),
    ("tasks", "fetch"),
    ("fit",),
    ("text_model",),
    ("sharded",),
    ("ray_engine",),
    ("light",),
    ("onnx",),
    ("device", "noise", "weights"),
    ("layout", "states"),
    ("ops",),
    ("nn",),
    ("captured", "describe"),
    ("card",),
    ("model",),
    ("runtimes",),
    ("import_reference",),
    ("data",),
    ("evaluation",),
    ("plots",),
    ("analysis",),
    ("training",),
    ("bench", "demo", "web", "sklearn", "sentence_transformers"),
    ("cli",),
    ("__main__",),
)
PLACE = {name: place for place, layer in enumerate(LAYERS) for name in layer}
WITHOUT_TORCH = (
    "plugins",
    "threads",
    *("atomic", "array_file", "code_version", "registry", "signals", "drawing", "picture", "tree"),
    "extras",
    *(
        "answers",
        "encoded",
        "generators",
        "text_model",
        "sharded",
        "ray_engine",
        "runtimes",
        "sklearn",
        "describe",
        "analysis.trace",
        "analysis.samples",
        "analysis.steps",
        "analysis.index",
        "analysis.figure",
    ),
    *("settings", "parts", "migrate", "config", "packaged", "hub", "store", "fit", "fixed_orders"),
    "onnx",
    *("light.network", "light.trees", "light.baselines", "light.heads", "light.leaves"),
    *(
        "text.batches",
        "text.files",
        "text.ids",
        "text.lines",
        "text.tokenizer",
        "text.vectors",
        "tasks.task",
    ),
    *("tasks.snli", "tasks.sst", "tasks.listops", "tasks.table", "tasks.table_file", "fetch"),
)


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield path, parts


def imported(path):
    """Yield the top-level modules of the package that a file imports anywhere."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = (
                [f"gumbeltree.{alias.name}" for alias in node.names]
                if module == "gumbeltree"
                else [module]
            )
        else:
            continue
        for name in names:
            if name.startswith("gumbeltree."):
                unit = name.split(".")[1]
                if (ROOT / unit).is_dir() or (ROOT / f"{unit}.py").exists():
                    yield unit


def test_every_module_has_a_layer():
    units = {parts[0] for _, parts in modules()} - {"__init__"}
    assert units == set(PLACE)


def test_modules_import_lower_layers_only():
    wrong = []
    for path, (unit, *_) in modules():
        if unit == "__init__":
            continue
        wrong += [
            f"{path.relative_to(ROOT)} imports {other}"
            for other in imported(path)
            if PLACE[other] > PLACE[unit]
        ]
    assert not wrong


def test_modules_of_a_layer_do_not_import_each_other():
    found = {
        (parts[0], other)
        for path, parts in modules()
        if parts[0] != "__init__"
        for other in imported(path)
    }
    assert not {pair for pair in found if pair[::-1] in found and pair[0] != pair[1]}


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_low_layers_do_not_import_torch(name):
    program = f"import sys, gumbeltree.{name}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_reading_recipes_does_not_import_torch():
    program = (
        "import sys, gumbeltree\n"
        "recipe = gumbeltree.load_recipe('snli-300d')\n"
        "gumbeltree.with_settings(recipe, ['trees=left', 'leaf=affine', 'encoder.kind=bag'])\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_public_classes_have_distinct_names():
    seen = {}
    for path, _ in modules():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                seen.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in seen.items() if len(paths) > 1} == {}
