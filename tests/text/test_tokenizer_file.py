"""Tokenizers from files: what is accepted, and what would abort or block a process."""

import json

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from gumbeltree.text.tokenizer import treebank_tokenizer, whitespace_tokenizer
from gumbeltree.text.tokenizer_file import MOST_ADDED, MOST_STEPS, parse_tokenizer

TEXT = 'The dog said: "I can\'t sleep." Mr. Smith didn’t.'


def replace(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


def described(**parts):
    """Return the description of a word-level tokenizer with other parts."""
    return json.dumps({**json.loads(whitespace_tokenizer(["a", "b"]).to_str()), **parts})


def sequence(*steps):
    return {"type": "Sequence", "normalizers": list(steps)}


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("build", [whitespace_tokenizer, treebank_tokenizer])
def test_accepts_our_tokenizers(build, lower):
    made = build(["The", "dog", "the", "n't"], lower)
    for pretty in (False, True):
        read = parse_tokenizer(made.to_str(pretty=pretty))
        assert read.encode(TEXT).tokens == made.encode(TEXT).tokens


def test_accepts_word_level_tokenizers_of_other_libraries():
    made = Tokenizer(models.WordLevel({"[UNK]": 0, "[PAD]": 1, "dog": 2}, unk_token="[UNK]"))
    made.add_special_tokens(["[UNK]", AddedToken("[PAD]", lstrip=True)])
    made.normalizer = normalizers.Sequence(
        [
            normalizers.NFKD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"\s+"), " "),
            normalizers.Replace(Regex(r"https?"), "url"),
        ]
    )
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Whitespace(),
            pre_tokenizers.Digits(),
            pre_tokenizers.Split(Regex(r"\w+|[^\w\s]{1,20}"), "isolated"),
        ]
    )
    text = "[PAD] Dög 12 !?"
    assert parse_tokenizer(made.to_str()).encode(text).tokens == made.encode(text).tokens


PADDING = {
    "strategy": {"Fixed": 2_000_000_000},
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 0,
    "pad_type_id": 0,
    "pad_token": "a",
}
TOKEN = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized", "special"], False)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        pytest.param({"padding": PADDING}, "padding must be null", id="padding"),
        pytest.param({"truncation": {"max_length": 1}}, "truncation must be", id="truncation"),
        pytest.param(
            {"post_processor": json.loads(processors.ByteLevel().__getstate__())},
            "post_processor must be null",
            id="post-processor",
        ),
        pytest.param(
            {"normalizer": sequence(*[replace({"String": "a"}, "aa")] * 20)},
            "1000 times as long",
            id="chain",
        ),
        pytest.param(
            {"normalizer": sequence(*[replace({"Regex": "x?"}, "a" * 40)] * 2)},
            "1000 times as long",
            id="empty-match",
        ),
        pytest.param(
            {"normalizer": replace({"String": ""}, "a" * 1000)}, "1000 times", id="empty-string"
        ),
        pytest.param(
            {"normalizer": sequence(*[{"type": "Strip"}] * (MOST_STEPS + 1))},
            f"limit is {MOST_STEPS}",
            id="many-steps",
        ),
        *(
            pytest.param(
                {"normalizer": replace({"Regex": regex}, "b")},
                "may take too long",
                id=f"regex-{number}",
            )
            for number, regex in enumerate(
                ["(a+)+$", "a*a*a*b", r"(?=a)b", r"(a)\1", "[a[b]]+", "a**", "b|a+a+", "x" * 201]
            )
        ),
        pytest.param(
            {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a|aa)+$"}}},
            "may take too long",
            id="split",
        ),
        pytest.param(
            {"normalizer": {"type": "Prepend", "prepend": "a"}}, "'Prepend'", id="normalizer"
        ),
        pytest.param({"pre_tokenizer": {"type": "ByteLevel"}}, "'ByteLevel'", id="pre-tokenizer"),
        pytest.param({"decoder": {"type": "Fuse"}}, "decoder", id="decoder"),
        pytest.param(
            {"added_tokens": [{**TOKEN, "id": 9, "content": "x"}] * (MOST_ADDED + 1)},
            f"limit is {MOST_ADDED}",
            id="added-tokens",
        ),
        pytest.param({"model": {"type": "BPE", "vocab": {}, "merges": []}}, "BPE", id="model"),
    ],
)
def test_refuses_steps_without_bounded_cost(parts, reason):
    with pytest.raises(ValueError, match=f"^is refused: .*{reason}") as error:
        parse_tokenizer(described(**parts))
    assert len(str(error.value)) < 250


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": {}},
        {"normalizer": {"type": "Sequence"}},
        {"normalizer": {"type": "Replace", "pattern": {}, "content": ""}},
        {"normalizer": {"type": "Replace", "pattern": "a", "content": "b"}},
        {"added_tokens": 3},
        {"model": {}},
        {"model": None},
        {"decoder": 7},
    ],
    ids=str,
)
def test_refuses_malformed_descriptions(parts):
    with pytest.raises(ValueError, match=r"^is not a tokenizer"):
        parse_tokenizer(described(**parts))


def test_refuses_deeply_nested_steps():
    inner = '{"type":"Sequence","normalizers":['
    content = described(normalizer="HERE").replace('"HERE"', inner * 5000 + "]}" * 5000)
    with pytest.raises(ValueError, match=r"^is not a tokenizer"):
        parse_tokenizer(content)
