"""Models on the Hugging Face Hub: three files are fetched and read strictly, and nothing is run."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

from gumbeltree import __version__
from gumbeltree.atomic import replace_file

if TYPE_CHECKING:
    import torch

    from gumbeltree.model import SentenceModel

PREFIX = "hub:"
CARD = "README.md"
# letters, digits, "-", "_" and "." on both sides of one slash
REPOSITORY = re.compile(r"(?!.*(?:--|\.\.|\.git$))\w(?:[\w.-]*\w)?/\w(?:[\w.-]*\w)?", re.ASCII)


class HubModel:
    """What a model needs to be shared: save_pretrained, push_to_hub, from_pretrained.

    The names are those of huggingface_hub's ModelHubMixin, which is not the base: its
    save_pretrained deletes config.json before it saves, and so breaks folders that `save` refuses
    and hides from `save` those it may replace; its from_pretrained reads config.json on its own,
    drops the keys it does not know and passes over a failed download. Nor need a model wait for
    huggingface_hub, which is imported at the first use of the Hub.
    """

    provenance: dict[str, Any]
    """Where the weights come from: anything JSON can hold; kept from load to save."""

    def save_pretrained(
        self,
        folder: str | Path,
        license: str | None = None,
        language: str | None = None,
        *,
        half_embeddings: bool = False,
    ) -> None:
        """Write a model folder as `gumbeltree.save` does, and its card, README.md.

        Args:
            folder: as for `gumbeltree.save`. A README.md that was not generated stays.
            license: of the weights, such as "mit"; in the card only if given, here or in the
                provenance.
            language: of the texts, such as "en"; the same.
            half_embeddings: as for `gumbeltree.save`.
        """
        from gumbeltree.card import generated, model_card
        from gumbeltree.store import save

        model = cast("SentenceModel", self)
        card = model_card(model, license=license, language=language)
        save(model, folder, half_embeddings=half_embeddings)
        readme = Path(folder, CARD)
        if not readme.exists() or generated(readme.read_text(encoding="utf-8", errors="replace")):
            replace_file(readme, lambda path: path.write_text(card, encoding="utf-8"))

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        token: str | None = None,
        message: str | None = None,
        license: str | None = None,
        language: str | None = None,
        card: str | None = None,
        half_embeddings: bool = False,
    ) -> str:
        """Upload the model and its card to the Hub, in one commit; return the commit's address.

        Args:
            repo_id: "org/name"; made if absent. Other files in it stay.
            private: whether only you may see it; None leaves that to the Hub.
            token: None takes the one of `hf auth login` or HF_TOKEN.
            message: of the commit.
            license: of the weights, such as "mit"; in the card only if given, here or in the
                provenance.
            language: of the texts, such as "en"; the same.
            card: the text of README.md; generated if None.
            half_embeddings: as for `gumbeltree.save`.
        """
        from huggingface_hub import CommitOperationAdd, HfApi, get_token

        from gumbeltree.card import model_card
        from gumbeltree.store import save

        check_id(repo_id)
        model = cast("SentenceModel", self)
        card = card or model_card(model, repo_id, license, language)
        with TemporaryDirectory() as folder:
            save(model, folder, half_embeddings=half_embeddings)
            Path(folder, CARD).write_text(card, encoding="utf-8")
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
                    [CommitOperationAdd(p.name, p) for p in sorted(Path(folder).iterdir())],
                    commit_message=message or f"Push with gumbeltree {__version__}",
                )
        return str(commit.commit_url)

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        revision: str | None = None,
        token: str | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        device: "str | torch.device" = "cpu",
    ) -> "SentenceModel":
        """Load a model folder, a packaged model or one on the Hub, strictly, in evaluation mode.

        Args:
            name: a folder; or else the name of a packaged model, without a slash; or else
                "org/name" on the Hub. "hub:org/name" is never a folder.
            revision: branch, tag or commit on the Hub.
            token: None takes the one of `hf auth login` or HF_TOKEN, where there is one.
            cache_dir: where downloads are kept; None takes huggingface_hub's own folder.
            local_files_only: use what was downloaded before, without the network.
            device: where the weights go.
        """
        from gumbeltree.packaged import packaged_folder
        from gumbeltree.store import load

        local = not str(name).startswith(PREFIX) and Path(name).is_dir()
        if local or packaged_folder(str(name)) is not None:
            if revision is not None:
                where = (
                    f"a folder; write {PREFIX}{name} for the Hub's"
                    if local
                    else "a packaged model; leave it out"
                )
                raise ValueError(f"`revision` belongs to models on the Hub, but {name} is {where}")
            return load(name, device)
        return load(fetch(str(name), revision, token, cache_dir, local_files_only), device)


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
        revision: as in `HubModel.from_pretrained`, and so are the others.
        token: see there.
        cache_dir: see there.
        local_files_only: see there.
    """
    from huggingface_hub import snapshot_download

    from gumbeltree.store import CONFIG, TOKENIZER, WEIGHTS

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
                allow_patterns=[CONFIG, WEIGHTS, TOKENIZER],
                library_name="gumbeltree",
                library_version=__version__,
            )
        )
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(f"{repo_id} on the Hub is no gumbeltree model: it has no {CONFIG}")
    return folder


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
