"""Requests and responses as pydantic models: they validate input and document the API."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from gumbeltree.analysis.trace import NEAR_TIE
from gumbeltree.web.limits import LIMITS


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


# JSON does not distinguish 5.0 from 5
WHOLE = BeforeValidator(_whole)
# the pattern requires one character that is not white space
Text = Annotated[
    str,
    Field(min_length=1, max_length=LIMITS.characters, pattern=r"\S", examples=["i love this ."]),
]
Texts = Annotated[
    list[Text],
    Field(
        min_length=1,
        max_length=LIMITS.texts,
        description="Sentences, each with at least one word.",
        examples=[["i love this very much .", "it is anything but dull ."]],
    ),
]
Name = Annotated[str, Field(max_length=200, description="A model name from GET /api/models.")]
Span = Annotated[list[Annotated[int, WHOLE]], Field(min_length=2, max_length=2)]
Probabilities = dict[str, float]


class Request(BaseModel):
    """Base class of requests: types are not converted, and unknown fields are rejected."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    model: Name

    @model_validator(mode="before")
    @classmethod
    def _limit_fields(cls, value: object) -> object:
        # pydantic reports every unknown field, and a body can hold 100,000 of them
        if isinstance(value, dict) and len(value) > len(cls.model_fields) + 8:
            raise PydanticCustomError("too_many_fields", "Object should have fewer fields")
        return value


class TreesRequest(Request):
    """Base class of requests for sentences whose trees can be sampled."""

    texts: Texts
    seed: Annotated[int, Field(ge=0, le=2**53 - 1), WHOLE] | None = Field(
        None, description="Seed for sampling the merges; null merges the best candidates."
    )
    temperature: float = Field(
        1.0, ge=1e-6, le=1e6, description="Divides the scores: higher is more random."
    )
    samples: Annotated[int, WHOLE] = Field(
        0,
        ge=0,
        le=LIMITS.samples,
        description="Sampled trees per sentence, summarized in the field `samples`.",
    )


class ParseRequest(TreesRequest):
    """Sentences to parse."""

    beams: Annotated[int, WHOLE] = Field(
        0,
        ge=0,
        le=LIMITS.beams,
        description="Most probable trees per sentence, listed in the field `beams`.",
    )
    tree: str = Field(
        "model",
        # brackets and escapes are longer than the text
        max_length=4 * LIMITS.characters,
        description='"model" for the tree that the model chooses; "left", "right", "balanced" or a '
        "bracketing of the sentence's words for a tree that it must follow.",
        examples=["model", "left", "( ( i love ) this )"],
    )
    prefix: Annotated[
        tuple[Annotated[int, Field(ge=0, lt=LIMITS.words), WHOLE], ...],
        Field(
            max_length=LIMITS.words - 1,
            strict=False,
            description="Positions of the first merges; the model chooses the others.",
            examples=[[2, 0]],
        ),
    ] = ()


class PredictRequest(TreesRequest):
    """Sentences, or pairs of sentences, to classify."""

    second: Texts | None = Field(
        None, description="Second sentence of each pair; required by pair models only."
    )
    tree: Literal["model", "left", "right", "balanced"] = Field(
        "model", description="The trees to follow; by default, those that the model chooses."
    )


class EncodeRequest(Request):
    """Sentences to encode."""

    texts: Texts


class NeighboursRequest(Request):
    """A sentence, or a phrase of it, to find neighbours of."""

    text: Text
    span: Span | None = Field(
        None,
        description="A node as [first word, last word + 1]; null is the whole sentence.",
        examples=[[0, 2]],
    )
    k: Annotated[int, WHOLE] = Field(
        5, ge=1, le=LIMITS.neighbours, description="Number of neighbours."
    )


class Failure(BaseModel):
    """An error."""

    detail: str = Field(examples=["model: no such model; available: snli-100d, sst2-100d"])


class UnexpectedFailure(Failure):
    """An internal server error."""

    id: str = Field(description="Identifies the traceback in the server's log.")


class Queue(BaseModel):
    """Requests waiting for the models in the process that responds."""

    waiting: int = Field(description="Requests that have not begun.")
    limit: int
    oldest: float = Field(description="Seconds since the oldest unanswered request arrived.")


class Thread(BaseModel):
    """The thread that runs the models."""

    alive: bool
    slice: float = Field(
        description="Seconds since the current slice of work began; slices are normally shorter "
        "than 0.1."
    )


class Health(BaseModel):
    """Server status."""

    status: str = Field(description='"ok", or "stuck" with status 503.', examples=["ok"])
    version: str
    models: int
    queue: Queue
    thread: Thread


class Measured(BaseModel):
    """The result of a model on its own data, as recorded in its folder."""

    metric: str = Field(examples=["accuracy"])
    value: float
    split: str = Field(description='"test", or "dev" without a result on the test split.')
    data: str | None = Field(description="The task.", examples=["snli"])
    examples: int | None = Field(description="Number of examples of the split.")
    trained_on: int | None = Field(description="Number of training examples.")


class ModelInfo(BaseModel):
    """A model that is served."""

    name: str
    kind: str = Field(description='Its head, such as "single", "pair_number" or a custom one.')
    sentences: int = Field(description="Sentences per prediction, 1 or 2.")
    labels: list[str]
    trees: str = Field(
        description='"none", "given" with the data, "fixed" (independent of the words), "sampled" '
        '(by score) or "soft" (the heaviest tree of a mixture).'
    )
    width: int = Field(description="Dimension of the sentence vectors.")
    vocabulary: int = Field(description="Size of the vocabulary.")
    max_words: int = Field(description="Longer texts are truncated to this length.")
    description: str
    beams: bool = Field(description="Whether `parse` can list the most probable trees.")
    index: bool = Field(description="Whether a sentence index is available.")
    measured: Measured | None = Field(description="Null if its folder records no result.")


class LimitsInfo(BaseModel):
    """Limits per request."""

    characters: int = Field(description="Maximum per text.")
    words: int = Field(description="Maximum per text.")
    texts: int = Field(description="Maximum per request.")
    samples: int = Field(description="Maximum number of sampled trees per text.")
    beams: int = Field(description="Maximum number of most probable trees per text.")
    neighbours: int = Field(description="Maximum per request.")
    body: int = Field(description="Maximum size of a request body in bytes.")
    answer: int = Field(description="Maximum size of a response body in bytes.")


class Models(BaseModel):
    """The models and the limits of the server."""

    models: list[ModelInfo]
    limits: LimitsInfo


class Predicted(BaseModel):
    """The prediction for a sentence or pair.

    Models that predict numbers return `value`, and `bins` with positions and probabilities if they
    have bins; those that predict tags return `labels` and `probabilities`. Models with a custom
    head return other fields.
    """

    model_config = ConfigDict(extra="allow")

    label: str | None = None
    probabilities: Probabilities | None = None


class PredictedSamples(Predicted):
    """The prediction for a sentence or pair, and a summary of sampled trees if requested."""

    samples: "SamplesAnswer | None" = Field(
        None, description="`trees` are those of the first sentence, `answers` those of the pair."
    )


class LayerAnswer(BaseModel):
    """The candidates of one merge."""

    scores: list[float] = Field(description="One per candidate, left to right.")
    probabilities: list[float] = Field(description="Eq. 12, at the requested temperature.")
    choice: int = Field(description="Index of the candidate that was merged.")
    runner_up: int | None = Field(description="The best other candidate; null if there is none.")
    lead: float | None = Field(
        description="Score of the choice minus that of the runner-up: the log-odds between the two "
        "at temperature 1. Null for the last merge and for fixed trees."
    )
    near_tie: bool = Field(description=f"Whether the lead is between -{NEAR_TIE} and {NEAR_TIE}.")


class NodeAnswer(BaseModel):
    """A word or a merge."""

    span: Span
    children: Span | None = Field(description="Indices of its children in `nodes`.")
    step: int | None = Field(description="Index of the layer that created it.")
    score: float | None
    probability: float | None
    classes: Probabilities | None = Field(description="Class probabilities of this node alone.")


class SampledTree(BaseModel):
    """One of the most frequent trees."""

    order: list[int]
    brackets: str
    share: float = Field(description="Fraction of the samples.")
    greedy: bool = Field(description="Whether this is the tree that the model chooses itself.")
    answer: Predicted | None = Field(description="The prediction for this tree.")


class BeamTree(BaseModel):
    """One of the most probable trees."""

    order: list[int]
    brackets: str
    probability: float = Field(description="Share among the trees found; the shares add up to 1.")
    log_prob: float = Field(description="Log-probability of its merges, at temperature 1.")
    greedy: bool = Field(description="Whether this is the tree that the model chooses itself.")
    answer: Predicted | None = Field(
        description="The prediction for this tree; null for pair models."
    )


class LabelShare(BaseModel):
    """How often a label is predicted over the sampled trees."""

    share: float = Field(description="Fraction of the samples that predict it.")
    mean: float = Field(description="Mean probability.")


class NumberSummary(BaseModel):
    """The distribution of a predicted number over the sampled trees."""

    mean: float
    quantiles: dict[str, float] = Field(examples=[{"0.05": 1.2, "0.5": 2.5, "0.95": 3.1}])


class SamplesAnswer(BaseModel):
    """The sampled trees of a sentence."""

    trees: list[SampledTree] = Field(description="At most five, most frequent first.")
    distinct: int = Field(description="Number of distinct trees.")
    greedy_share: float = Field(description="Fraction of the tree that the model chooses itself.")
    answers: dict[str, LabelShare] | NumberSummary | None = Field(
        description="By label, or for numbers the mean and quantiles; null for pair models."
    )
    top: list[float] | None = Field(
        description="Per sample, the probability of the greedy tree's label, or the number."
    )


class Parsed(BaseModel):
    """A sentence and its tree."""

    text: str
    words: list[str]
    order: list[int] = Field(description="Position of each merge.")
    brackets: str = Field(examples=["( i ( love this ) )"])
    offsets: list[Span] = Field(description="Character range of each word.")
    unknown: list[bool] = Field(description="Whether each word is out of the vocabulary.")
    unknown_share: float = Field(description="Fraction of the words that are.")
    sampled: bool
    greedy: bool = Field(description="Whether this is the tree that the model chooses itself.")
    cut: bool = Field(description="Whether the text was truncated.")
    trees: str = Field(
        description='"learned", or the kind of fixed trees: "left", "right", "balanced" or '
        '"random". For fixed trees, scores, probabilities and spans carry no information; nor do '
        "the scores and probabilities of encoders that score no merges, such as CYK.",
        examples=["learned"],
    )
    layers: list[LayerAnswer]
    nodes: list[NodeAnswer] = Field(description="The words, then the merges, root last.")
    classes: Probabilities | None = Field(
        description="Class probabilities of the sentence for this tree; null for pair models and "
        "heads without classes."
    )
    answer: Predicted | None = Field(
        description="The prediction for this tree; null for pair models."
    )
    spans: list[Annotated[list[Any], Field(min_length=3, max_length=3)]] | None = Field(
        description="[first word, last word + 1, fraction of the sampled trees that contain the "
        "span]; null without `samples`.",
        examples=[[[0, 2, 0.75], [0, 3, 1.0]]],
    )
    samples: SamplesAnswer | None = Field(
        description="Summary of the sampled trees; null without them."
    )
    beams: list[BeamTree] | None = Field(
        description="The most probable trees that beam search finds, best first, whatever the "
        "seed, temperature and tree of the request; null without `beams`."
    )


class ParseAnswer(BaseModel):
    """One tree per sentence."""

    results: list[Parsed]


class PredictAnswer(BaseModel):
    """One prediction per sentence or pair."""

    results: list[PredictedSamples]


class EncodeAnswer(BaseModel):
    """One vector per sentence."""

    width: int
    vectors: list[list[float]]


class Neighbour(BaseModel):
    """A similar sentence or phrase."""

    text: str
    score: float = Field(description="Cosine similarity.")


class NeighboursAnswer(BaseModel):
    """The nearest sentences or phrases, most similar first."""

    source: str = Field(
        description='"index": indexed sentences; "phrases": phrases of the examples.'
    )
    neighbours: list[Neighbour]
