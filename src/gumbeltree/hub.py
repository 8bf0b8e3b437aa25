"""Download models from the Hugging Face Hub and upload them, without executing their code."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gumbeltree import __version__

FILES = ("config.json", "model.safetensors", "tokenizer.json")
"""Settings, weights and tokenizer of a model."""
PREFIX = "hub:"
CARD = "README.md"
LOGIN = "log in with `hf auth login` or set HF_TOKEN"


def fetch(
    name: str,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
) -> Path:
    """Download the files of a model, unless they are in the cache, and return their folder.

    The arguments are those of `SentenceModel.from_pretrained`. The name, "org/name" or
    "hub:org/name", can end in "@" and a revision.
    """
    from huggingface_hub import snapshot_download

    repo_id, _, suffix = name.removeprefix(PREFIX).partition("@")
    check_id(repo_id)
    if suffix and revision is not None:
        raise ValueError(f"pass only one revision, as {repo_id}@REVISION or as `revision`")
    revision = suffix or revision
    with plain_errors(f"{repo_id}@{revision}" if revision else repo_id):
        folder = Path(
            snapshot_download(
                repo_id,
                revision=revision,
                token=token,
                cache_dir=cache_dir,
                local_files_only=local_files_only,
                # do not even download pickles, code or other files
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
    """Upload all files of a folder in one commit and return its URL; see `push_to_hub`."""
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
        # unlike upload_folder, always one commit, so that nobody loads half a model
        commit = api.create_commit(
            repo_id,
            [CommitOperationAdd(path.name, path) for path in sorted(folder.iterdir())],
            commit_message=message or f"Push with gumbeltree {__version__}",
        )
    return str(commit.commit_url)


def check_id(repo_id: str) -> None:
    """Raise unless `repo_id` has the form ORG/NAME; huggingface_hub checks the characters."""
    if repo_id.count("/") != 1:
        raise ValueError(f"{repo_id!r} is not a repository name on the Hub; pass ORG/NAME")


@contextmanager
def plain_errors(repo_id: str) -> Iterator[None]:
    """Convert exceptions of huggingface_hub to one-line errors that say what to do."""
    from huggingface_hub import errors

    try:
        yield
    # errors have no common base class, and HTTP errors depend on the version of huggingface_hub
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        detail = " ".join(str(getattr(error, "server_message", None) or error).split())[:300]
        plain: Exception
        if isinstance(error, errors.RevisionNotFoundError):
            plain = FileNotFoundError(f"the Hub has no {repo_id}: {detail}")
        elif isinstance(error, errors.RepositoryNotFoundError):
            plain = FileNotFoundError(
                f"the Hub has no model {repo_id}, or you have no access to it; check the name, "
                f"request access on its page, or {LOGIN}"
            )
        elif status in (401, 403):
            plain = PermissionError(f"the Hub denied access to {repo_id}: {detail}; {LOGIN}")
        elif isinstance(error, errors.OfflineModeIsEnabled | errors.LocalEntryNotFoundError):
            plain = ConnectionError(
                f"{repo_id} is not in the cache and the Hub cannot be reached; check the network, "
                "HF_HUB_OFFLINE and `local_files_only`"
            )
        elif isinstance(error, ValueError) and status is None:
            plain = ValueError(f"{repo_id}: {detail}")
        else:
            plain = ConnectionError(f"the Hub request for {repo_id} failed: {detail}")
        raise plain from error
