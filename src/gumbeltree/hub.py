"""Files of models on the Hugging Face Hub: three are fetched, and nothing is run."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gumbeltree import __version__

FILES = ("config.json", "model.safetensors", "tokenizer.json")
"""Of a model: its settings, weights and tokenizer."""
PREFIX = "hub:"
CARD = "README.md"
# letters, digits, "-", "_" and "." on both sides of one slash
REPOSITORY = re.compile(r"(?!.*(?:--|\.\.|\.git$))\w(?:[\w.-]*\w)?/\w(?:[\w.-]*\w)?", re.ASCII)


def fetch(
    name: str,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
) -> Path:
    """Download the three files of a model, unless they are in the cache; return their folder.

    Args:
        name: "org/name" or "hub:org/name", with "@" and a revision behind it or not.
        revision: as in `SentenceModel.from_pretrained`, and so are the others.
        token: see there.
        cache_dir: see there.
        local_files_only: see there.
    """
    from huggingface_hub import snapshot_download

    repo_id, at, behind = name.removeprefix(PREFIX).partition("@")
    check_id(repo_id)
    if at and (revision is not None or not behind):
        raise ValueError(f"{name!r} must name one revision behind its @, and `revision` none")
    with plain_errors(repo_id, behind or revision, local_files_only):
        folder = Path(
            snapshot_download(
                repo_id,
                revision=behind or revision,
                token=token,
                cache_dir=cache_dir,
                local_files_only=local_files_only,
                # whatever else is there, pickles or code, is not even downloaded
                allow_patterns=list(FILES),
                library_name="gumbeltree",
                library_version=__version__,
            )
        )
    if not (folder / FILES[0]).is_file():
        raise FileNotFoundError(
            f"{repo_id} on the Hub is no gumbeltree model: it has no {FILES[0]}"
        )
    return folder


def upload(
    folder: Path, repo_id: str, private: bool | None, token: str | None, message: str | None
) -> str:
    """Upload all files of a folder in one commit; return the commit's address.

    Args:
        folder: what to upload.
        repo_id: as in `SentenceModel.push_to_hub`, and so are the others.
        private: see there.
        token: see there.
        message: see there.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, get_token

    with plain_errors(repo_id):
        token = token or get_token()
    if token is None:
        raise PermissionError(
            f"pushing to {repo_id} needs a token, got none; log in with `hf auth login` "
            "or set HF_TOKEN"
        )
    api = HfApi(token=token, library_name="gumbeltree", library_version=__version__)
    with plain_errors(repo_id):
        api.create_repo(repo_id, private=private, exist_ok=True)
        public = private and not api.repo_info(repo_id).private
    if public:
        raise ValueError(
            f"{repo_id} must be private, but it exists and is public; make it private in "
            "its settings on the Hub, or push to another name"
        )
    with plain_errors(repo_id):
        # one commit whatever the sizes, unlike upload_folder: nobody loads half a model
        commit = api.create_commit(
            repo_id,
            [CommitOperationAdd(p.name, p) for p in sorted(folder.iterdir())],
            commit_message=message or f"Push with gumbeltree {__version__}",
        )
    return str(commit.commit_url)


def check_id(repo_id: str) -> None:
    """Raise unless `repo_id` is the name of a repository on the Hub."""
    if not REPOSITORY.fullmatch(repo_id) or len(repo_id) > 96:
        raise ValueError(
            f"expected a name on the Hub, ORG/NAME of letters, digits, '-', '_' and '.', got "
            f"{repo_id!r}"
        )


@contextmanager
def plain_errors(
    repo_id: str, revision: str | None = None, local_files_only: bool = False
) -> Iterator[None]:
    """Turn what huggingface_hub raises into one line that says what to do."""
    try:
        yield
    # its errors have no common base, and those of its HTTP library change with its version
    except Exception as error:
        raise _explain(error, repo_id, revision, local_files_only) from error


def _explain(
    error: Exception, repo_id: str, revision: str | None, local_files_only: bool
) -> Exception:
    from huggingface_hub import constants, errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    detail = " ".join(str(getattr(error, "server_message", None) or error).split())[:300]
    login = "log in with `hf auth login` or set HF_TOKEN"
    if isinstance(error, errors.GatedRepoError):
        return PermissionError(f"{repo_id} is gated: ask for access on its page, then {login}")
    if isinstance(error, errors.RevisionNotFoundError):
        return FileNotFoundError(f"{repo_id} has no revision {revision!r}; see its page for those")
    if isinstance(error, errors.RepositoryNotFoundError):
        return FileNotFoundError(
            f"the Hub has no model {repo_id} that you may see; check the name, and if it is "
            f"private, {login}"
        )
    if status in (401, 403):
        return PermissionError(
            f"the Hub refused {repo_id}: {detail}; {login}, with a token that may do this"
        )
    if isinstance(error, errors.OfflineModeIsEnabled | errors.LocalEntryNotFoundError):
        if constants.HF_HUB_OFFLINE:
            return ConnectionError(f"{repo_id} needs the network; unset HF_HUB_OFFLINE")
        if local_files_only:
            return FileNotFoundError(
                f"{repo_id} was not downloaded before; load it once without `local_files_only`"
            )
    if isinstance(error, errors.LocalEntryNotFoundError):
        return ConnectionError(
            f"the Hub cannot be reached for {repo_id}, which was not downloaded before; check the "
            "network"
        )
    if isinstance(error, ValueError) and status is None:
        return ValueError(f"{repo_id}: {detail}")
    return ConnectionError(f"the Hub failed on {repo_id}: {type(error).__name__}: {detail}")
