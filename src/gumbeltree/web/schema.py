"""What goes in and out, as pydantic models: they check requests and make the OpenAPI document."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from gumbeltree.web.limits import LIMITS


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


# JSON has one kind of number: 5.0 is as whole as 5
WHOLE = BeforeValidator(_whole)
# the pattern asks for one character that is no space
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
Name = Annotated[str, Field(max_length=200, description="A name that GET /api/models lists.")]
Span = Annotated[list[Annotated[int, WHOLE]], Field(min_length=2, max_length=2)]
Probabilities = dict[str, float]


class Request(BaseModel):
    """Types are taken as they are, and unknown fields are refused: most are misspelt."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    model: Name

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, value: object) -> object:
        # each unknown one would be an error of its own, and a body has room for 100,000
        if isinstance(value, dict) and len(value) > len(cls.model_fields) + 8:
            raise PydanticCustomError("too_many_fields", "Object should have fewer fields")
        return value


class ParseRequest(Request):
    """Sentences whose trees are wanted."""

    texts: Texts
    seed: Annotated[
        Annotated[int, Field(ge=0, le=2**53 - 1), WHOLE] | None,
        Field(description="Sample the merges, the same for the same seed; null takes the best."),
    ] = None
    temperature: Annotated[
        float,
        Field(
            ge=1e-6,
            le=1e6,
            description="The higher, the less the scores say; 1 is as in training.",
        ),
    ] = 1.0
    samples: Annotated[
        int,
        Field(
            ge=0,
            le=LIMITS.samples,
            description="Trees to draw of each sentence, to see how sure each span is.",
        ),
        WHOLE,
    ] = 0


class PredictRequest(Request):
    """Sentences, or the first and second sentences of pairs, whose classes are wanted."""

    texts: Texts
    second: Annotated[
        Texts | None,
        Field(description="For models of pairs: the second sentences, as many as the first."),
    ] = None


class EncodeRequest(Request):
    """Sentences whose vectors are wanted."""

    texts: Texts


class NeighboursRequest(Request):
    """A sentence, or a part of it, of which the like is wanted."""

    text: Text
    span: Annotated[
        Span | None,
        Field(
            description="First word and the one after the last of a node of the sentence's tree; "
            "null is the whole sentence.",
            examples=[[0, 2]],
        ),
    ] = None
    k: Annotated[
        int, Field(ge=1, le=LIMITS.neighbours, description="How many are wanted."), WHOLE
    ] = 5


class Failure(BaseModel):
    """Why there is no answer."""

    detail: Annotated[str, Field(examples=["model: no such model; known: snli-100d, sst2-100d"])]


class UnexpectedFailure(Failure):
    """A mistake of the server's own."""

    id: Annotated[str, Field(description="Under which the server's log has more.")]


class Queue(BaseModel):
    """Requests that wait for the models, in the process that answers."""

    waiting: int
    limit: int


class Health(BaseModel):
    """That the server runs."""

    status: Annotated[str, Field(examples=["ok"])]
    version: str
    models: int
    queue: Queue


class AboutModel(BaseModel):
    """What is known of a model."""

    name: str
    kind: Annotated[str, Field(description='Its head: "single", "pair", or one of your own.')]
    sentences: Annotated[int, Field(description="Sentences that an answer is about, 1 or 2.")]
    labels: list[str]
    trees: Annotated[
        str, Field(description='"none", "fixed" (the same for all words) or "sampled" (by score).')
    ]
    width: Annotated[int, Field(description="Numbers in the vector of a sentence.")]
    vocabulary: Annotated[int, Field(description="Words that have a vector of their own.")]
    max_words: Annotated[int, Field(description="Words of a text that it reads.")]
    description: str
    index: Annotated[bool, Field(description="Whether sentences can be searched for.")]


class AboutLimits(BaseModel):
    """Bounds of one request."""

    characters: Annotated[int, Field(description="Of a text.")]
    words: Annotated[int, Field(description="Of a text.")]
    texts: Annotated[int, Field(description="Of a request.")]
    samples: Annotated[int, Field(description="Drawn of a text.")]
    neighbours: Annotated[int, Field(description="That are named.")]
    body: Annotated[int, Field(description="Bytes of a request.")]
    answer: Annotated[int, Field(description="Bytes of an answer.")]


class Models(BaseModel):
    """What can be asked for."""

    models: list[AboutModel]
    limits: AboutLimits


class Predicted(BaseModel):
    """What a model says about a sentence or pair: for models of classes, label and probabilities.

    Models with another head answer with fields of their own.
    """

    model_config = ConfigDict(extra="allow")

    label: str | None = None
    probabilities: Probabilities | None = None


class LayerAnswer(BaseModel):
    """The candidates of one step and what became of them."""

    scores: Annotated[list[float], Field(description="Of each candidate, left to right.")]
    probabilities: Annotated[list[float], Field(description="Eq. 12, at the temperature.")]
    choice: Annotated[int, Field(description="The candidate that was merged.")]
    runner_up: Annotated[int | None, Field(description="The most probable of the others.")]


class NodeAnswer(BaseModel):
    """A word or a merge."""

    span: Span
    children: Annotated[Span | None, Field(description="Places of its children among the nodes.")]
    step: Annotated[int | None, Field(description="The layer that made it.")]
    score: float | None
    probability: float | None
    classes: Annotated[
        Probabilities | None, Field(description="What the classifier says of it alone.")
    ]


class Parsed(BaseModel):
    """A sentence, its tree and how it came about."""

    text: str
    words: list[str]
    order: Annotated[list[int], Field(description="Position of each merge.")]
    brackets: Annotated[str, Field(examples=["( i ( love this ) )"])]
    offsets: Annotated[list[Span], Field(description="Characters of each word in the text.")]
    unknown: Annotated[list[bool], Field(description="Whether the vocabulary lacks each word.")]
    sampled: bool
    cut: Annotated[bool, Field(description="Whether the model leaves out the end.")]
    trees: Annotated[
        str,
        Field(
            description='"learned", or which fixed trees the model makes: "left", "right", '
            '"balanced" or "random". Scores, probabilities and spans of fixed trees say nothing.',
            examples=["learned"],
        ),
    ]
    layers: list[LayerAnswer]
    nodes: Annotated[list[NodeAnswer], Field(description="Words, then merges, the root last.")]
    classes: Annotated[
        Probabilities | None,
        Field(
            description="Of the sentence, by its best tree; null for models of pairs, and where "
            "answers are no classes."
        ),
    ]
    answer: Annotated[
        Predicted | None,
        Field(description="What `/api/predict` says of the sentence; null for models of pairs."),
    ]
    spans: Annotated[
        list[Annotated[list[Any], Field(min_length=3, max_length=3)]] | None,
        Field(
            description="First word, the one after the last, and the share of the drawn trees "
            "that have the span; null if none were drawn.",
            examples=[[[0, 2, 0.75], [0, 3, 1.0]]],
        ),
    ]


class ParseAnswer(BaseModel):
    """A tree for each sentence, in their order."""

    results: list[Parsed]


class PredictAnswer(BaseModel):
    """An answer for each sentence or pair, in their order."""

    results: list[Predicted]


class EncodeAnswer(BaseModel):
    """A vector for each sentence, in their order."""

    width: int
    vectors: list[list[float]]


class Neighbour(BaseModel):
    """A sentence or phrase and how like it is."""

    text: str
    score: Annotated[float, Field(description="Cosine of the vectors.")]


class NeighboursAnswer(BaseModel):
    """What is alike, the most alike first."""

    source: Annotated[
        str, Field(description='"index": sentences; "phrases": parts of example sentences.')
    ]
    neighbours: list[Neighbour]
