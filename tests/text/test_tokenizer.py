import json
import time
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gumbeltree.text.tokenizer import (
    ABBREVIATIONS,
    PAD,
    UNKNOWN,
    treebank_tokenizer,
    undo_ptb_escapes,
    whitespace_tokenizer,
)

# texts and their tokens, identical to those of NLTK's word tokenizer
SAME_AS_NLTK = {
    "contractions": [
        ("I don't know.", "I do n't know ."),
        ("DON'T! I WON'T.", "DO N'T ! I WO N'T ."),
        ("it's a dog's life", "it 's a dog 's life"),
        ("IT'S", "IT 'S"),
        ("I'm sure we'll see they're late", "I 'm sure we 'll see they 're late"),
        ("I'd say you've won", "I 'd say you 've won"),
        ("WE'LL THEY'RE YOU'VE", "WE 'LL THEY 'RE YOU 'VE"),
        ("(it's, isn't?)", "( it 's , is n't ? )"),
        ("the dogs' bowls", "the dogs ' bowls"),
        ("cannot Cannot CANNOT", "can not Can not CAN NOT"),
        ("I'm gonna wanna, gotta.", "I 'm gon na wan na , got ta ."),
        ("gimme lemme d'ye more'n", "gim me lem me d 'ye more 'n"),
        ("five o'clock, ma'am", "five o'clock , ma'am"),
        ("rock 'n' roll", "rock 'n ' roll"),
        ("cannots gonnas forgotta wannabe", "cannots gonnas forgotta wannabe"),
        ("say 'it's' now", "say ' it 's ' now"),
        ("tell 'em in the '90s", "tell ' em in the ' 90s"),
        ("a don't-touch sign", "a don't-touch sign"),
    ],
    "quotes": [
        ('"Hello," he said.', "`` Hello , '' he said ."),
        ('He said "go".', "He said `` go '' ."),
        ('He said "go."', "He said `` go . ''"),
        ('("a" ["b" {"c" <"d"', "( `` a '' [ `` b '' { `` c '' < `` d ''"),
        ("He said ''go''", "He said `` go ''"),
        ("``go'' she said", "`` go '' she said"),
        ("the 'big' one", "the ' big ' one"),
        ("“go” «va» ‘x’ „y", "“ go ” « va » ‘ x ’ „ y"),
        ('a 6" pipe', "a 6 '' pipe"),
        ("```x", "`` ` x"),
        ('`"x', "` `` x"),
    ],
    "brackets": [
        ("(a) [b] {c} <d>", "( a ) [ b ] { c } < d >"),
        ("f(x)[1]", "f ( x ) [ 1 ]"),
        ("(He ran.)", "( He ran . )"),
        ("(He ran). [It sat.]", "( He ran ) . [ It sat . ]"),
    ],
    "ellipses and dashes": [
        ("Well... no.", "Well ... no ."),
        ("Well.. no....", "Well .. no ...."),
        ("wait...What", "wait ... What"),
        ("one--two -- three---four", "one -- two -- three -- -four"),
        ("1990–1995 — yes―no", "1990 – 1995 — yes ― no"),
        ("a well-known t-shirt and/or 1/2", "a well-known t-shirt and/or 1/2"),
    ],
    "sentence ends": [
        ("He ran. She sat.", "He ran . She sat ."),
        ("He ran.  ", "He ran ."),
        ("He ran.\nShe sat.", "He ran . She sat ."),
        ('"He ran." She sat.', "`` He ran . '' She sat ."),
        ('He ran. "She sat."', "He ran . `` She sat . ''"),
        ("It was (so. Then) done", "It was ( so . Then ) done"),
        ("He ran! She sat? Yes.", "He ran ! She sat ? Yes ."),
        ("He ran. Élise sat.", "He ran . Élise sat ."),
        ("He ran. «Va»", "He ran . « Va »"),
        ("so did I. Then we left.", "so did I . Then we left ."),
        ("3 ft. The end", "3 ft . The end"),
        ("a. b", "a. b"),
        ("He.Ran", "He.Ran"),
        ("I CAN'T. He can", "I CA N'T . He can"),  # no initial T
        ("a size-M. Then", "a size-M . Then"),
    ],
    "abbreviations": [
        ("On St. Patrick's day", "On St. Patrick 's day"),
        ("ST. PATRICK", "ST. PATRICK"),
        ("The U.S. Navy", "The U.S. Navy"),
        ("the u.s. Navy", "the u.s. Navy"),
        ("on Rt. 1 today", "on Rt. 1 today"),
        ("3 ft. deep.", "3 ft. deep ."),
        ("Mr. and Mrs. J. P. Smith vs. Dr. Who", "Mr. and Mrs. J. P. Smith vs. Dr. Who"),
        ("an east. Then", "an east . Then"),  # ends in "st", but is no abbreviation
        ("e.g., this (etc.) that", "e.g. , this ( etc. ) that"),
        ("in the U.S.", "in the U.S ."),
    ],
    "numbers and signs": [
        ("It cost $3.88, or 3,360.50!", "It cost $ 3.88 , or 3,360.50 !"),
        ("50% of #1 at 5:30 & 10:2", "50 % of # 1 at 5:30 & 10:2"),
        ("1, 2,3, four,five", "1 , 2,3 , four , five"),
        ("Note: a;b", "Note : a ; b"),
        ("2*3*4 me@x.org", "2 * 3 * 4 me @ x.org"),
        ("-5 +3 .5", "-5 +3 .5"),
        ("end,", "end ,"),
    ],
    "addresses": [
        ("see http://a.org/b_c-d/?e=f&g#h.", "see http : //a.org/b_c-d/ ? e=f & g # h ."),
        ("www.a-b.com/c", "www.a-b.com/c"),
    ],
    "scripts": [
        ("ok 👍🏽👨‍👩‍👧, fine", "ok 👍🏽👨‍👩‍👧 , fine"),
        ("שלום, עולם!", "שלום , עולם !"),
        ("(مرحبا) بالعالم.", "( مرحبا ) بالعالم ."),
        ("cafe\u0301's e\u0301.", "cafe\u0301 's e\u0301 ."),
        ("我喜欢, 你", "我喜欢 , 你"),
        ("a\x00b, \x00.", "a\x00b , \x00 ."),
    ],
    "little": [
        ("", ""),
        (" \t\n\u00a0", ""),
        (".", "."),
        ("...", "..."),
        ("?!", "? !"),
        (",;:", ", ; :"),
        ("'", "'"),
        ('"', "``"),
        ("''", "''"),
        ("-", "-"),
        ("([{<>}])", "( [ { < > } ] )"),
        ("a\x1cb\x1f.", "a b ."),
    ],
}
# deliberate differences from NLTK: see docs/tokens.md
OTHER_THAN_NLTK = [
    ("I don’t, it’s", "I do n't , it 's"),
    ("l’été", "l'été"),
    ('""', "`` ''"),
    ('so\n"go"', "so `` go ''"),
    ("a,,b", "a , , b"),
    ('He ran. "', "He ran . ``"),
]


def check(text, expected):
    # unexpected tokens are out of vocabulary and become <unk>
    encoding = treebank_tokenizer(dict.fromkeys(expected)).encode(text)
    assert encoding.tokens == expected


@pytest.mark.parametrize(
    ("text", "tokens"),
    [*(pair for pairs in SAME_AS_NLTK.values() for pair in pairs), *OTHER_THAN_NLTK],
)
def test_tokens(text, tokens):
    check(text, tokens.split(" ") if tokens else [])


def test_abbreviations_keep_their_period():
    for word in ABBREVIATIONS:
        check(f"a {word}. Xenon", ["a", f"{word}.", "Xenon"])
        check(f"a x{word}. Xenon", ["a", f"x{word}", ".", "Xenon"])


splitter = cache(lambda lower: treebank_tokenizer([], lower))


def spans(text, lower=False):
    return splitter(lower).encode(text).offsets


def test_offsets_refer_to_the_original_text():
    text = 'É "can\'t. He" cannot’s.'
    pieces = [text[first:last] for first, last in spans(text)]
    assert pieces == ["É", '"', "ca", "n't", ".", "He", '"', "can", "not", "’s", "."]


@given(
    st.text(
        st.one_of(
            st.sampled_from(" \n\"'`’.,:;-()[]$?!AbnNtTsS1é😀\u0301\x00\x1c\u2028İſ"),
            st.characters(codec="utf-8"),
        ),
        max_size=30,
    ),
    st.booleans(),
)
@example(" ''a'' ``b''", False)
@example('`"""\'"``"', False)
@example("' `''`", False)
@example('a."). "B.\'', False)
@example("İ’İ. İ", True)
def test_offsets_cover_every_character_once(text, lower):
    offsets = spans(text, lower)
    covered = [i for first, last in offsets for i in range(first, last)]
    assert covered == sorted(set(covered))
    assert all(0 <= first < last <= len(text) for first, last in offsets)
    assert set(covered) == {i for i, character in enumerate(text) if not character.isspace()}


@given(st.lists(st.sampled_from([text for pairs in SAME_AS_NLTK.values() for text, _ in pairs])))
def test_lower_does_not_change_offsets(texts):
    text = " ".join(texts)
    assert spans(text, lower=True) == spans(text)


def test_lower():
    words = ["``", "do", "n't", ".", "she", "can", "not", "st.", "john"]
    text = "\"DON'T. She CANNOT. St. John."
    encoding = treebank_tokenizer(words, lower=True).encode(text)
    assert encoding.ids == [0, 1, 2, 3, 4, 5, 6, 3, 7, 8, 3]
    assert [text[first:last] for first, last in encoding.offsets][:5] == [
        '"', "DO", "N'T", ".", "She",
    ]  # fmt: skip
    cased = treebank_tokenizer(words).encode(text)
    assert cased.tokens == ["``", UNKNOWN, UNKNOWN, ".", *[UNKNOWN] * 3, ".", UNKNOWN, UNKNOWN, "."]


@pytest.mark.parametrize("lower", [False, True])
def test_saved_tokenizer_is_complete(tmp_path, lower):
    pairs = [pair for pairs in SAME_AS_NLTK.values() for pair in pairs]
    words = dict.fromkeys(word for _, tokens in pairs for word in tokens.split(" "))
    tokenizer = treebank_tokenizer(words, lower)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text, _ in pairs:
        before, after = tokenizer.encode(text), loaded.encode(text)
        assert after.ids == before.ids
        assert after.offsets == before.offsets
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    assert content["added_tokens"] == []
    assert content["post_processor"] is None


@pytest.mark.parametrize("build", [whitespace_tokenizer, treebank_tokenizer])
def test_ids_follow_the_words(build):
    tokenizer = build(iter(["b", "a", PAD]))
    assert tokenizer.get_vocab() == {"b": 0, "a": 1, f"{PAD} ": 2, PAD: 3, UNKNOWN: 4}
    assert tokenizer.encode("a b c").ids == [1, 0, 4]
    with pytest.raises(ValueError, match="duplicates, got 'a'"):
        build(["a", "b", "a"])


def test_whitespace_tokenizer_splits_only_at_white_space():
    text = 'He "can\'t". She\x1csat.'
    assert whitespace_tokenizer(["can't"]).encode(text).offsets == [
        (0, 2), (3, 11), (12, 15), (16, 20),
    ]  # fmt: skip
    assert whitespace_tokenizer(["he"], lower=True).encode("HE").ids == [0]


@pytest.mark.parametrize(
    "piece", [".", ". ", "a.)", "'", '"', "n't", "--", "(", "``", "cannot", "St. A"]
)
def test_long_lines_take_linear_time(piece):
    start = time.perf_counter()
    spans(piece * (100_000 // len(piece)))
    # linear time is 0.1 s, quadratic time would be minutes
    assert time.perf_counter() - start < 10


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["a", "A man's dog can't run. "])
def test_line_of_ten_megabytes(piece):
    text = piece * (10_000_000 // len(piece))
    start = time.perf_counter()
    offsets = spans(text)
    assert time.perf_counter() - start < 120
    assert len(offsets) == (1 if piece == "a" else 8 * (10_000_000 // len(piece)))
    assert offsets[-1][1] == len(text.rstrip())


@pytest.mark.parametrize(
    ("word", "plain"),
    [
        ("-LRB-", "("),
        ("-RRB-", ")"),
        ("-LSB-", "["),
        ("-RSB-", "]"),
        ("-LCB-", "{"),
        ("-RCB-", "}"),
        (r"1\/2", "1/2"),
        (r"a\/b\/c", "a/b/c"),
        (r"\*\*", "**"),
        ("``", "``"),
        ("''", "''"),
        ("x-LRB-", "x-LRB-"),
        ("-lrb-", "-lrb-"),
        ("\\", "\\"),
        ("", ""),
        ("dog", "dog"),
    ],
)
def test_undo_ptb_escapes(word, plain):
    assert undo_ptb_escapes(word) == plain
