"""Test install commands for every way to install the package."""

import json
import shlex
import sys
from importlib import util
from pathlib import Path

import pytest

from gumbeltree import extras
from gumbeltree.extras import install_command, pip_command

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REQUIRES = (
    "Requires-Dist: numpy>=1.26\n"
    "Requires-Dist: fastapi>=0.115; extra == 'web'\n"
    'Requires-Dist: uvicorn>=0.32; extra == "web"\n'
    "Requires-Dist: matplotlib; extra == 'plots'\n"
)


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """Return a function that pretends an installation with these files and programs."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)

    def make(origin=None, *programs, pip=True, **files):
        info = tmp_path / "site" / "gumbeltree-0.1.0.dist-info"
        info.mkdir(parents=True)
        text = f"Metadata-Version: 2.4\nName: gumbeltree\nVersion: 0.1.0\n{REQUIRES}"
        (info / "METADATA").write_text(text)
        if origin is not None:
            (info / "direct_url.json").write_text(json.dumps(origin))
        for program in programs:
            path = tmp_path / program
            path.parent.mkdir(exist_ok=True)
            path.write_text("")
            path.chmod(0o755)
        for name, content in files.items():
            (tmp_path / name.replace("_dot_", ".")).write_text(content)
        monkeypatch.syspath_prepend(info.parent)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{tmp_path / 'other'}")
        if not pip:
            find = util.find_spec
            monkeypatch.setattr(
                util, "find_spec", lambda name, *rest: None if name == "pip" else find(name, *rest)
            )
        return tmp_path

    return make


def test_from_an_index(environment):
    environment(None, "bin/pip")
    assert install_command("web") == "pip install 'gumbeltree[web]'"


def test_editable(environment, tmp_path):
    folder = tmp_path / "my tree"
    folder.mkdir()
    environment({"url": folder.as_uri(), "dir_info": {"editable": True}}, "bin/pip")
    assert install_command("web") == f"pip install -e '{folder}[web]'"


@pytest.mark.parametrize("kind", ["dir_info", "archive_info"])
def test_local_files(environment, tmp_path, kind):
    path = tmp_path / "gumbeltree-0.1.0-py3-none-any.whl"
    path.write_text("")
    environment({"url": path.as_uri(), kind: {}}, "bin/pip")
    assert install_command("plots") == f"pip install '{path}[plots]'"


def test_a_deleted_wheel_falls_back_to_the_requirements_of_the_extra(environment):
    environment({"url": "file:///gone/gumbeltree.whl", "archive_info": {}}, "bin/pip")
    assert install_command("web") == "pip install 'fastapi>=0.115' 'uvicorn>=0.32'"


def test_repositories_and_archives(environment):
    version = {"vcs": "git", "requested_revision": "main", "commit_id": COMMIT}
    root = environment(
        {"url": "https://host/tree.git", "vcs_info": version, "subdirectory": "py"}, "bin/pip"
    )
    address = f"gumbeltree[web] @ git+https://host/tree.git@{COMMIT}#subdirectory=py"
    assert shlex.split(install_command("web")) == ["pip", "install", address]
    info = next((root / "site").iterdir()) / "direct_url.json"
    info.write_text(json.dumps({"url": "https://host/tree.whl", "archive_info": {}}))
    assert install_command("web") == "pip install 'gumbeltree[web] @ https://host/tree.whl'"


def test_another_pip_on_the_path_is_not_used(environment, tmp_path):
    environment(None, "other/pip")
    python = tmp_path / "bin" / "python"
    assert install_command("web") == f"{python} -m pip install 'gumbeltree[web]'"


def test_python_on_the_path(environment):
    environment(None, "bin/python")
    assert install_command("web") == "python -m pip install 'gumbeltree[web]'"


def test_uv(environment, tmp_path, monkeypatch):
    environment(None, "bin/pip", pip=False, pyvenv_dot_cfg="home = /usr\nuv = 0.8.0\n")
    python = tmp_path / "bin" / "python"
    assert install_command("web") == f"uv pip install --python {python} 'gumbeltree[web]'"
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    assert install_command("web") == "uv pip install 'gumbeltree[web]'"


def test_pipx(environment, tmp_path):
    environment(None, "bin/pip", pipx_metadata_dot_json="{}")
    name = shlex.quote(tmp_path.name)
    assert install_command("web") == f"pipx runpip {name} install 'gumbeltree[web]'"


@pytest.mark.parametrize(
    ("platform", "torch", "driver", "cpu_build"),
    [
        ("linux", False, False, True),
        ("linux", False, True, False),
        ("linux", True, False, False),
        ("darwin", False, False, False),
    ],
)
def test_torch_without_cuda(environment, monkeypatch, platform, torch, driver, cpu_build):
    environment(None, "bin/pip")
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(extras, "has_torch", lambda: torch)
    monkeypatch.setattr(extras, "has_nvidia_driver", lambda: driver)
    first = "pip install torch --index-url https://download.pytorch.org/whl/cpu"
    before = f"{first} && " if cpu_build else ""
    assert install_command("torch") == f"{before}pip install 'gumbeltree[torch]'"
    assert install_command("web") == "pip install 'gumbeltree[web]'"
    page = Path(__file__).parents[1] / "docs" / "install.md"
    assert f"\n{first}\n" in page.read_text(encoding="utf-8")


def test_other_packages(environment):
    environment(None, "bin/pip")
    assert pip_command("pyarrow") == "pip install pyarrow"


def test_a_source_folder_without_metadata(environment, monkeypatch):
    environment(None, "bin/pip")
    monkeypatch.setattr(sys, "path", [])
    root = Path(__file__).parents[1]
    assert shlex.split(install_command("web")) == ["pip", "install", "-e", f"{root}[web]"]
