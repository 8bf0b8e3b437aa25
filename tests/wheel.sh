#!/usr/bin/env bash
# Build the wheel, install it into a clean environment outside the source tree and use it there,
# first without torch, then with it.
#   bash tests/wheel.sh PYTHON
set -euo pipefail
python=$(realpath -s "$1")
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m build --quiet --wheel --outdir "$work/dist" "$root"
wheel=$(echo "$work"/dist/*.whl)
"$python" -m venv "$work/venv"
cd "$work"
bin="$work/venv/bin"
install() { "$bin/python" -m pip install --quiet --constraint "$root/constraints.txt" "$@"; }
# fails with a command that succeeds, or with one whose message lacks "$1"
refused() {
  local message=$1
  shift
  if "$@" > /dev/null 2> missing.txt; then
    echo "wheel: $* was expected to fail" >&2
    exit 1
  fi
  grep -qF "$message" missing.txt || { cat missing.txt >&2; exit 1; }
}
names=$(cd "$root/src/gumbeltree" && for config in pretrained/*/config.json; do
  [ -e "$config" ] && basename "$(dirname "$config")"
done || true)
[ -n "$names" ] || echo "wheel: this source tree has no packaged models"

# 1. without torch: everything that uses a model
install "$wheel"
if "$bin/python" -c "import torch" 2> /dev/null; then
  echo "wheel: torch was installed without the extra" >&2
  exit 1
fi
size=$(du -sm "$work"/venv/lib/python*/site-packages | cut -f 1)
pip=$(du -smc "$work"/venv/lib/python*/site-packages/pip | tail -1 | cut -f 1)
echo "wheel: $((size - pip)) MB installed without torch and pip"
[ $((size - pip)) -lt 180 ]
"$bin/gumbeltree" --version
"$bin/gumbeltree" models
"$bin/gumbeltree" info snli-300d > /dev/null
for name in $names; do
  text="i love this very much ." file="$root/README.md"
  [ "$name" != listops-64d ] || { text="[MAX 2 9 ]" file=texts.txt; echo "$text" > $file; }
  "$bin/gumbeltree" parse "$name" "$text"
  "$bin/gumbeltree" draw "$name" "$text" --out tree.svg --quiet
  "$bin/gumbeltree" encode "$name" "$text" --out vectors.npy --quiet
  "$bin/gumbeltree" info "$name" --json | grep '"pretrained"' > /dev/null
  "$bin/gumbeltree" index "$name" --input "$file" --out "$name.index" --quiet --skip-bad
done
"$bin/gumbeltree" predict sst2-100d "i love this very much ." --json > light.json
refused "[torch]'" "$bin/gumbeltree" train demo --out run
[ ! -e run ]
# the command names the wheel, which is no package of an index
refused "$bin/python -m pip install '$wheel[web]'" "$bin/gumbeltree" explore --no-open
install "$wheel[web]"
"$bin/gumbeltree" serve sst2-100d --port 0 > server.txt 2>&1 &
server=$!
"$bin/python" - <<'PY'
import json, re, time, urllib.request
from importlib import resources
web = resources.files("gumbeltree") / "web"
assert (web / "static" / "index.html").is_file() and (web / "examples.json").is_file()
for attempt in range(300):
    if address := re.search(r"http://\S+/", open("server.txt").read()):
        break
    time.sleep(0.2)
body = json.dumps({"model": "sst2-100d", "texts": ["i love this very much ."]}).encode()
headers = {"Content-Type": "application/json"}
request = urllib.request.Request(f"{address[0]}api/predict", body, headers)
answer = json.load(urllib.request.urlopen(request, timeout=60))
print("wheel: served without torch:", json.dumps(answer)[:100])
PY
kill -TERM "$server"
wait "$server"

# 2. with torch: training, and the same answers
# most of its modules are never imported; those that are, are compiled then
unset PYTHONDONTWRITEBYTECODE
install --no-compile "$wheel[torch]"
"$bin/gumbeltree" demo --quick --quiet --out demo > /dev/null
"$bin/gumbeltree" info demo/model --json > /dev/null
"$bin/gumbeltree" parse demo/model "nobody says that the cake is dull ."
"$bin/gumbeltree" predict demo "nobody says that the cake is dull ."
"$bin/gumbeltree" predict sst2-100d "i love this very much ." --json --runtime torch > torch.json
"$bin/python" - <<'PY'
import json
import gumbeltree
model = gumbeltree.load("demo/model")
vectors = model.encode(["the dog sleeps", "now"])
assert vectors.shape == (2, model.config.encoder.hidden_dim), vectors.shape
assert gumbeltree.__file__.startswith(__import__("sys").prefix), gumbeltree.__file__
light, torch = (json.load(open(f"{name}.json"))["probabilities"] for name in ("light", "torch"))
assert all(abs(light[label] - torch[label]) < 1e-5 for label in torch), (light, torch)
print("wheel: info, load, parse and predict work in a clean environment")
PY
# without the extra, plotting names what to install
refused ".whl[plots]'" "$bin/gumbeltree" bench --quick --plot growth.png
