"""Test the Dockerfile without Docker: run its steps in a folder that stands for the image."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.ports import reserved_port

ROOT = Path(__file__).parent.parent
TOKEN = "a-token-of-sufficient-length"
TEXT = "the plot is dull , but the cast is great ."
KNOWN = {
    *("FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "EXPOSE"),
    *("HEALTHCHECK", "ENTRYPOINT", "CMD"),
}


class Step(NamedTuple):
    """One instruction of the Dockerfile."""

    name: str
    text: str

    @property
    def words(self):
        """The words of an instruction in JSON form."""
        return json.loads(self.text[self.text.index("[") :])


def stages():
    """Return the steps of each stage of the Dockerfile."""
    text = (ROOT / "Dockerfile").read_text("utf-8")
    lines = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    steps = [Step(*line.split(maxsplit=1)) for line in lines if line.strip()]
    assert {step.name for step in steps} <= KNOWN
    starts = [n for n, step in enumerate(steps) if step.name == "FROM"]
    return [steps[a:b] for a, b in zip(starts, [*starts[1:], None], strict=True)]


def last(name):
    """Return the last instruction with this name."""
    return next(step for step in reversed(stages()[-1]) if step.name == name)


def ignored(path):
    """Return whether .dockerignore keeps a file out of the build; later lines take precedence."""
    found = False
    for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines():
        pattern = line.removeprefix("!")
        parts = [path, *(parent.as_posix() for parent in Path(path).parents)][:-1]
        names = [Path(part).name for part in parts]
        if line.startswith("**/"):
            matched = any(fnmatch(name, line[3:]) for name in names)
        else:
            matched = line[:1] not in ("", "#") and any(fnmatch(part, pattern) for part in parts)
        if matched:
            found = not line.startswith("!")
    return found


def test_the_build_gets_what_it_copies_and_little_else():
    copied = [step.text.split() for step in stages()[0] if step.name == "COPY"]
    sources = [source for words in copied for source in words[:-1]]
    for source in sources:
        assert (ROOT / source).exists(), source
        assert not ignored(source), source
    assert not ignored("src/gumbeltree/pretrained/sst2-100d/config.json")
    assert ignored("src/gumbeltree/__pycache__/tree.pyc")
    for path in (".git", ".venv", "tests", "docs", "runs", "Dockerfile", "reviews.csv"):
        assert ignored(path), path


def test_the_image_is_small_and_has_no_rights():
    base = {step.text.split()[0] for steps in stages() for step in steps if step.name == "FROM"}
    assert base == {"python:3.12-slim"}
    user = last("USER").text.split(":")[0]
    assert user.isdigit()
    assert user != "0"
    assert not any("torch" in step.text.lower() for steps in stages() for step in steps)
    # the entry point comes with the environment, which pip is not part of
    assert last("ENTRYPOINT").words == ["gumbeltree"]
    assert "8000" in last("EXPOSE").text
    assert "8000" in last("CMD").words


class Image:
    """A folder in the place of the root of an image, and the steps that fill it."""

    def __init__(self, folder, path):
        self.root = folder / "root"
        self.root.mkdir()
        self.home = self.root
        self.environment = {"PATH": path, "LANG": "C.UTF-8"}
        kept = ("PIP_", "UV_", "SSL_", "OMP_", "HTTP", "http", "no_proxy", "NO_PROXY")
        self.environment |= {k: v for k, v in os.environ.items() if k.startswith(kept)}
        # where the configuration of pip is
        self.environment["HOME"] = os.environ.get("HOME", "/")

    def place(self, path):
        """Return the place of a path of the image."""
        return self.root / path.lstrip("/") if path.startswith("/") else self.home / path

    def inside(self, text):
        """Return a text with the paths of the image replaced by their places."""
        return re.sub(r"(?<![\w.:/])/(?=(?:opt|source|models|tmp)\b)", f"{self.root}/", text)

    def take(self, step):
        """Do what one instruction says."""
        if step.name == "WORKDIR":
            self.home = self.place(step.text)
            self.home.mkdir(parents=True, exist_ok=True)
        elif step.name == "COPY":
            *sources, target = step.text.split()
            if sources[0].startswith("--from="):
                # stages share the root, so the files are there
                assert self.place(sources[1]).exists()
                return
            for source in sources:
                copy = self.place(target) if target != "./" else self.home / source
                if (ROOT / source).is_dir():
                    ignore = shutil.ignore_patterns("__pycache__")
                    shutil.copytree(ROOT / source, copy, ignore=ignore)
                else:
                    shutil.copy(ROOT / source, copy)
        elif step.name == "RUN":
            command = ["sh", "-ec", self.inside(step.text)]
            subprocess.run(command, check=True, cwd=self.home, env=self.environment)
        elif step.name == "ENV":
            for word in shlex.split(self.inside(step.text)):
                name, _, value = word.partition("=")
                self.environment[name] = value.replace("$PATH", self.environment["PATH"])

    def command(self, words):
        """Return keyword arguments that run the words as the image does."""
        program = shutil.which(words[0], path=self.environment["PATH"])
        assert program is not None, words[0]
        return {"args": [program, *words[1:]], "cwd": self.home, "env": self.environment}


def check_server(image):
    """Start the server as the image does, ask it, and stop it."""
    with reserved_port() as port:
        return check_server_on(image, str(port))


def check_server_on(image, port):
    """Do so on `port` instead of 8000."""

    def words(name):
        return [word.replace("8000", port) for word in last(name).words]

    image.environment["GUMBELTREE_TOKEN"] = TOKEN
    health = image.command(words("HEALTHCHECK"))
    assert subprocess.run(**health, capture_output=True).returncode == 1
    server = subprocess.Popen(
        **image.command([*words("ENTRYPOINT"), *words("CMD"), "reviews"]),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        address = f"http://127.0.0.1:{port}"
        line = server.stdout.readline()
        assert "Serving at" in line, server.stderr.read()
        assert subprocess.run(**health).returncode == 0
        body = json.dumps({"model": "reviews", "texts": [TEXT]}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{address}/api/predict", body, headers)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(request, timeout=30)
        request.add_header("Authorization", f"Bearer {TOKEN}")
        with urllib.request.urlopen(request, timeout=30) as response:
            answer = json.load(response)["results"][0]
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0, server.stderr.read()
        return answer
    finally:
        server.kill()
        server.communicate()


def put_model(folder):
    """Put a model into the folder for the volume, and return its answer."""
    import gumbeltree
    from gumbeltree.packaged import packaged_folder

    shutil.copytree(packaged_folder("sst2-100d"), folder)
    return gumbeltree.load(folder).predict([TEXT])[0]


def check_answer(answer, expected):
    """Compare an answer of the server with that of the model."""
    assert answer["label"] == expected.label
    for label, value in expected.probabilities.items():
        assert answer["probabilities"][label] == pytest.approx(value, abs=1e-5)


def test_server_starts_as_the_image_says(tmp_path):
    pytest.importorskip("fastapi", reason="the server needs gumbeltree[web]")
    program = tmp_path / "bin" / "gumbeltree"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m gumbeltree "$@"\n')
    program.chmod(0o755)
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    image = Image(tmp_path, f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    image.environment["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    for step in stages()[-1]:
        if step.name != "COPY":
            image.take(step)
    expected = put_model(image.home / "reviews")
    check_answer(check_server(image), expected)


@pytest.mark.slow
def test_every_step_of_the_image(tmp_path):
    # the interpreter below the virtual environment, as in the base image
    base = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(base)
    image = Image(tmp_path, f"{tmp_path / 'bin'}:/usr/local/bin:/usr/bin:/bin")
    for steps in stages():
        for step in steps:
            image.take(step)
    environment = image.root / "opt" / "gumbeltree"
    installed = {path.name for path in environment.glob("lib/python*/site-packages/*")}
    assert not installed & {"torch", "pip", "lightning_fabric"}
    expected = put_model(image.home / "reviews")
    check_answer(check_server(image), expected)
