"""Download models from the Hugging Face Hub and upload them; no code of theirs is executed."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gumbeltree import __version__

FILES = ("config.json", "model.safetensors", "tokenizer.json")
"""Settings, weights and tokenizer of a model."""
PREFIX = "hub:"
CARD = "README.md"
# ASCII letters, digits, "-", "_" and "." on both sides of one slash
REPOSITORY = re.compile(r"(?!.*(?:--|\.\.|\.git$))\w(?:[\w.-]*\w)?/\w(?:[\w.-]*\w)?", re.ASCII)
LOGIN = "log in with `hf auth login` or set HF_TOKEN"


def fetch(
    name: str,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
) -> Path:
    """Download the files of a model, unless they are in the cache, and return their folder.

    Args:
        name: "org/name" or "hub:org/name", optionally followed by "@" and a revision.
        revision: As for `SentenceModel.from_pretrained`, like the other arguments.
        token: See there.
        cache_dir: See there.
        local_files_only: See there.
    """
    from huggingface_hub import snapshot_download

    repo_id, at, suffix = name.removeprefix(PREFIX).partition("@")
    check_id(repo_id)
    if at and (revision is not None or not suffix):
        raise ValueError(f"name one revision, either as {repo_id}@REVISION or as `revision`")
    revision = suffix or revision
    with plain_errors(repo_id, revision, local_files_only):
        folder = Path(
            snapshot_download(
                repo_id,
                revision=revision,
                token=token,
                cache_dir=cache_dir,
                local_files_only=local_files_only,
                # pickles, code and anything else is not even downloaded
                allow_patterns=list(FILES),
                library_name="gumbeltree",
                library_version=__version__,
            )
        )
    if not (folder / FILES[0]).is_file():
        raise FileNotFoundError(
            f"{repo_id} on the Hub is not a gumbeltree model: it has no {FILES[0]}"
        )
    return folder


def upload(
    folder: Path, repo_id: str, private: bool | None, token: str | None, message: str | None
) -> str:
    """Upload all files of a folder in one commit and return the URL of the commit.

    Args:
        folder: Folder to upload.
        repo_id: As for `SentenceModel.push_to_hub`, like the other arguments.
        private: See there.
        token: See there.
        message: See there.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, get_token

    token = token or get_token()
    if token is None:
        raise PermissionError(f"pushing to {repo_id} needs a token; {LOGIN}")
    api = HfApi(token=token, library_name="gumbeltree", library_version=__version__)
    with plain_errors(repo_id):
        api.create_repo(repo_id, private=private, exist_ok=True)
        if private and not api.repo_info(repo_id).private:
            raise ValueError(
                "the repository exists and is public; make it private in its settings on the Hub, "
                "or push to another name"
            )
        # unlike upload_folder, one commit whatever the sizes: nobody loads half a model
        commit = api.create_commit(
            repo_id,
            [CommitOperationAdd(path.name, path) for path in sorted(folder.iterdir())],
            commit_message=message or f"Push with gumbeltree {__version__}",
        )
    return str(commit.commit_url)


def check_id(repo_id: str) -> None:
    """Raise unless `repo_id` is a valid name of a repository on the Hub."""
    if not REPOSITORY.fullmatch(repo_id) or len(repo_id) > 96:
        raise ValueError(
            f"{repo_id!r} is not a name on the Hub; write ORG/NAME with letters, digits, '-', '_' "
            "and '.'"
        )


@contextmanager
def plain_errors(
    repo_id: str, revision: str | None = None, local_files_only: bool = False
) -> Iterator[None]:
    """Turn exceptions of huggingface_hub into one line that says what to do."""
    try:
        yield
    # its errors have no common base, and those of its HTTP library depend on its version
    except Exception as error:
        raise _explain(error, repo_id, revision, local_files_only) from error


def _explain(
    error: Exception, repo_id: str, revision: str | None, local_files_only: bool
) -> Exception:
    from huggingface_hub import constants, errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    detail = " ".join(str(getattr(error, "server_message", None) or error).split())[:300]
    if isinstance(error, errors.GatedRepoError):
        return PermissionError(f"{repo_id} is gated: request access on its page, then {LOGIN}")
    if isinstance(error, errors.RevisionNotFoundError):
        return FileNotFoundError(f"{repo_id} has no revision {revision!r}; its page lists them")
    if isinstance(error, errors.RepositoryNotFoundError):
        return FileNotFoundError(
            f"the Hub has no model {repo_id}, or it is private; check the name, or {LOGIN}"
        )
    if status in (401, 403):
        return PermissionError(f"the Hub denied access to {repo_id}: {detail}; {LOGIN}")
    if isinstance(error, errors.OfflineModeIsEnabled | errors.LocalEntryNotFoundError):
        if constants.HF_HUB_OFFLINE:
            return ConnectionError(f"{repo_id} needs the network; unset HF_HUB_OFFLINE")
        if local_files_only:
            return FileNotFoundError(
                f"{repo_id} is not in the cache; load it once without `local_files_only`"
            )
        return ConnectionError(f"cannot reach the Hub to load {repo_id}; check the network")
    if isinstance(error, ValueError) and status is None:
        return ValueError(f"{repo_id}: {detail}")
    return ConnectionError(f"the Hub failed on {repo_id}: {type(error).__name__}: {detail}")
