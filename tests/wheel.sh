#!/usr/bin/env bash
# Build the wheel, install it into a clean environment outside the source tree and use it there.
#   bash tests/wheel.sh PYTHON
set -euo pipefail
python=$(realpath -s "$1")
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m build --quiet --wheel --outdir "$work/dist" "$root"
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --constraint "$root/constraints.txt" "$work"/dist/*.whl
cd "$work"
bin="$work/venv/bin"
"$bin/gumbeltree" --version
"$bin/gumbeltree" info snli-300d
"$bin/gumbeltree" demo --quick --quiet --out demo > /dev/null
"$bin/gumbeltree" info demo/model --json > /dev/null
"$bin/gumbeltree" parse demo/model "nobody says that the cake is dull ."
"$bin/gumbeltree" predict demo "nobody says that the cake is dull ."
"$bin/python" - <<'PY'
import gumbeltree
model = gumbeltree.load("demo/model")
vectors = model.encode(["the dog sleeps", "now"])
assert vectors.shape == (2, model.config.encoder.hidden_dim), vectors.shape
assert gumbeltree.__file__.startswith(__import__("sys").prefix), gumbeltree.__file__
print("wheel: info, load and parse work in a clean environment")
PY
# every packaged model, by name
"$bin/gumbeltree" models
names=$(cd "$root/src/gumbeltree" && for config in pretrained/*/config.json; do
  [ -e "$config" ] && basename "$(dirname "$config")"
done || true)
[ -n "$names" ] || echo "wheel: this source tree has no packaged models"
for name in $names; do
  "$bin/gumbeltree" parse "$name" "i love this very much ."
  "$bin/gumbeltree" info "$name" --json | grep '"pretrained"' > /dev/null
done
# the wheel holds the explorer's page; without the extra, its command names what to install
"$bin/python" - <<'PY'
from importlib import resources
web = resources.files("gumbeltree") / "web"
assert (web / "static" / "index.html").is_file() and (web / "examples.json").is_file()
PY
if "$bin/gumbeltree" explore --no-open 2> missing.txt; then
  echo "explore ran without fastapi" >&2
  exit 1
fi
# the command names the wheel, which is no package of an index
grep -qF "$bin/python -m pip install '$(echo "$work"/dist/*.whl)[web]'" missing.txt
# without the extra, plotting names what to install
if "$bin/gumbeltree" bench --quick --plot growth.png 2> missing.txt; then
  echo "bench --plot ran without matplotlib" >&2
  exit 1
fi
grep -qF ".whl[plots]'" missing.txt
