"""Tokenizers from files: what is accepted, and what would abort or block a process."""

import itertools
import json

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from gumbeltree.text.tokenizer import treebank_tokenizer, whitespace_tokenizer
from gumbeltree.text.tokenizer_file import (
    MOST_ADDED,
    MOST_CHARACTERS,
    MOST_GROWTH,
    MOST_STEPS,
    NORMALIZERS,
    parse_tokenizer,
)

TEXT = 'The dog said: "I can\'t sleep." Mr. Smith didn’t.'


def replace(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


def described(**parts):
    """Return the description of a word-level tokenizer with other parts."""
    return json.dumps({**json.loads(whitespace_tokenizer(["a", "b"]).to_str()), **parts})


def split(pattern):
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


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
TOKEN = {
    **dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized", "special"], False),
    "id": 9,
}
# regular expressions that take more than linear time, match nothing, or are not understood
REFUSED = [
    *("(a+)+$", "a*a*a*b", r"(?=a)b", r"(a)\1", "[a[b]]+", "[^]a]+b]", "[a&&b]+", "b|a+a+", "a|"),
    *("a+b", "a?a", r"\s+$", "^a", r"a\b", "a*", "b|a?", "a{0,9}", "a{,9}", "a{100}", "a{1,9999}"),
    *("a**", "a+*", "a{1,9}{1,9}", "a{1,9999}{1,9999}b", "a{9}?", "a{9}+", r"\x{61}+", r"\u0061"),
]


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
            {"normalizer": sequence(*[replace({"String": "a"}, "aa")] * 7)},
            f"{MOST_GROWTH} times as long",
            id="chain",
        ),
        pytest.param(
            {"normalizer": replace({"Regex": "aa?|b{2}"}, "a" * (MOST_GROWTH + 1))},
            f"{MOST_GROWTH} times as long",
            id="growth",
        ),
        pytest.param({"normalizer": replace({"String": ""}, "b")}, "match nothing", id="empty"),
        pytest.param(
            {
                "normalizer": replace({"String": "a" * 100}, "b"),
                "pre_tokenizer": split({"Regex": "a" * (MOST_CHARACTERS - 99)}),
            },
            f"limit is {MOST_CHARACTERS}",
            id="patterns",
        ),
        pytest.param(
            {"normalizer": sequence(*[{"type": "Strip"}] * (MOST_STEPS + 1))},
            f"limit is {MOST_STEPS}",
            id="many-steps",
        ),
        *(
            pytest.param(
                {"pre_tokenizer": split({"Regex": regex})}, "too long", id=f"regex-{regex}"
            )
            for regex in REFUSED
        ),
        pytest.param(
            {"normalizer": {"type": "Prepend", "prepend": "a"}}, "'Prepend'", id="normalizer"
        ),
        pytest.param({"pre_tokenizer": {"type": "ByteLevel"}}, "'ByteLevel'", id="pre-tokenizer"),
        pytest.param({"decoder": {"type": "Fuse"}}, "decoder", id="decoder"),
        pytest.param(
            {"added_tokens": [{**TOKEN, "content": "x"}] * (MOST_ADDED + 1)},
            f"limit is {MOST_ADDED}",
            id="added-tokens",
        ),
        *(
            pytest.param(
                {
                    "added_tokens": [{**TOKEN, "content": token}],
                    "normalizer": replace({"Regex": "[uv]"}, ""),
                },
                "added token",
                id=f"added-{name}",
            )
            for name, token in {
                "long": "x" * (MOST_CHARACTERS + 1),
                "empty": "",
                "blank": " \t",
                "removed": "uv",
            }.items()
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
        {"pre_tokenizer": split({"String": "a", "Regex": "(a+)+$"})},
        {"added_tokens": 3},
        {"added_tokens": [{}]},
        {"normalizer": {"type": "Strip"}, "added_tokens": [{**TOKEN, "content": "a"}]},
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


def test_refuses_repeated_keys():
    content = described().replace(
        '"padding": null', f'"padding": {json.dumps(PADDING)}, "padding": 0'
    )
    with pytest.raises(ValueError, match=r"^is not a tokenizer: it has the key 'padding' twice"):
        parse_tokenizer(content)


@pytest.mark.parametrize(
    "parts",
    [
        {"model": {"type": "x" * 1000}},
        {"model": {"x" * 1000: 0}},
        {"model": {"type": "WordLevel", "vocab": {"x" * 1000: -1}, "unk_token": "x"}},
        {"decoder": {"type": "x" * 1000}},
        {"normalizer": {"type": "x" * 1000}},
        {"normalizer": replace({"Regex": f"{'x' * 1000}("}, "")},
        {"added_tokens": [{**TOKEN, "content": "x" * 1000}]},
    ],
    ids=["model", "key", "vocabulary", "decoder", "normalizer", "pattern", "added"],
)
def test_messages_do_not_repeat_long_values(parts):
    with pytest.raises(ValueError, match=r"^is (refused|not a tokenizer): ") as error:
        parse_tokenizer(described(**parts))
    assert len(str(error.value)) < 400


LINEAR = [
    *(r"\s+", "https?", r"\w+|[^\w\s]{1,20}", r"\p{L}+?|\p{^L}", "a{2,}|.b*", r"[^\]\\a-c|(]++"),
    *(r"\x41{12}", r"\(|\|b?"),
]


@pytest.mark.parametrize("regex", LINEAR)
def test_accepts_patterns_that_take_linear_time(regex):
    parse_tokenizer(described(pre_tokenizer=split({"Regex": regex})))


FLAGS = list(itertools.product([False, True], repeat=2))


@pytest.mark.parametrize("name", NORMALIZERS)
def test_normalizers_do_not_lengthen_a_text_more_than_assumed(name):
    kind = getattr(normalizers, name)
    made = [kind()]
    if name == "BertNormalizer":
        made += [kind(strip_accents=strip, lowercase=lower) for strip, lower in FLAGS]
    # the longest of each kind, and characters of several scripts
    characters = "\u0130\ufdfa\u1f82\ufb2c\u2fa1f\U0002fa1f\uac01\u00e9\u0390\u4e2d ﷽ǆŉßẞ"
    grown = max(len(one.normalize_str(letter)) for one in made for letter in characters)
    assert grown == NORMALIZERS[name]
