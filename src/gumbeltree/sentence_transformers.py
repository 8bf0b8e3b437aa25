"""A gumbeltree model as a module of sentence-transformers."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from gumbeltree.extras import TORCH_PACKAGES, needs

with needs(
    __name__,
    "sentence-transformers",
    "sentence-transformers",
    *("sentence_transformers", "transformers", *TORCH_PACKAGES),
):
    import torch
    from sentence_transformers import __version__ as library_version
    from sentence_transformers.sentence_transformer.modules import InputModule
    from tokenizers import Tokenizer
    from torch import Tensor
    from torch.nn.utils.rnn import pad_sequence

    from gumbeltree.layout import Sentences
    from gumbeltree.model import SentenceModel, load, save
    from gumbeltree.text.batches import as_texts
    from gumbeltree.text.ids import TextReader


class GumbelTree(InputModule):
    """A tokenizer and an encoder, as the first module of a `SentenceTransformer`.

    Merges are sampled in training mode and greedy in evaluation mode. The head of the model is
    frozen: it is saved with the model, but not used or trained.

    Args:
        model: a model, the name of a packaged model, a model folder, the folder of a run, or
            "hub:org/name[@revision]".
    """

    # `SentenceTransformer.save` writes files of its own to the root, and model folders must have
    # no others
    save_in_root = False

    def __init__(self, model: str | Path | SentenceModel) -> None:
        super().__init__()
        self.model = model if isinstance(model, SentenceModel) else load(model)
        # several processes would wait for its gradients
        self.model.head.requires_grad_(False)

    @property
    def tokenizer(self) -> Tokenizer:  # type: ignore[override]
        """The tokenizer of the model, which cannot be replaced."""
        return self.model.tokenizer

    @property
    def max_seq_length(self) -> int:
        """Maximum number of words; longer texts are truncated."""
        return self.model.config.max_words

    @max_seq_length.setter
    def max_seq_length(self, words: int) -> None:
        self.model.config = dataclasses.replace(self.model.config, max_words=words)

    def get_embedding_dimension(self) -> int:
        """Return the width D of the vectors."""
        width: int = self.model.encoder.vector_dim
        return width

    def preprocess(
        self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any
    ) -> dict[str, Tensor]:
        """Return the word ids of B texts.

        Args:
            inputs: texts.
            prompt: text to put before each of them.
            kwargs: ignored.

        Returns:
            `input_ids`, int64 `[B, T]`, and `attention_mask`, int64 `[B, T]`, 1 for words and 0 for
            padding.
        """
        texts = [(prompt or "") + text for text in as_texts(inputs)]
        reader = TextReader(self.tokenizer, self.max_seq_length)
        ids = [torch.tensor(sentence.ids) for sentence in reader.read(texts)]
        mask = pad_sequence([torch.ones_like(row) for row in ids], batch_first=True)
        return {"input_ids": pad_sequence(ids, batch_first=True), "attention_mask": mask}

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add the vectors of B sentences to their features.

        Args:
            features: the result of `preprocess`.
            kwargs: ignored.

        Returns:
            The features with `sentence_embedding`, `[B, D]`.
        """
        lengths = features["attention_mask"].sum(1)
        sentences = Sentences.padded(features["input_ids"], lengths)
        if self.training:
            self._forget_results()
        features["sentence_embedding"] = self.model.encode_batch(sentences).vector
        return features

    def _forget_results(self) -> None:
        """Move results of the model before this training to the key "init" of its provenance."""
        trained_by = f"sentence-transformers {library_version}"
        provenance = self.model.provenance
        if provenance.get("trained_by") != trained_by:
            self.model.provenance = {"trained_by": trained_by, "init": provenance}

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write a model folder, as `gumbeltree.save` does.

        Args:
            output_path: folder, created if needed.
            args: ignored.
            kwargs: ignored; weights are always saved as safetensors.
        """
        save(self.model, output_path)

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        init_defaults: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Load a module that `SentenceTransformer.save_pretrained` saved.

        Args:
            model_name_or_path: folder or name on the Hub of the whole model.
            subfolder: folder of this module in it.
            token: access token of the Hub.
            cache_folder: folder for downloads.
            revision: branch, tag or commit on the Hub.
            local_files_only: use earlier downloads only.
            init_defaults: ignored.
            kwargs: ignored.
        """
        folder = cls.load_dir_path(
            model_name_or_path, subfolder, token, cache_folder, revision, local_files_only
        )
        return cls(Path(folder or model_name_or_path))
