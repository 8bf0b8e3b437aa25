"""Shards: order, resuming, damaged files, other jobs, and reading them."""

import dataclasses
import itertools
import json

import numpy as np
import pytest

import gumbeltree
from gumbeltree import array_file, sharded
from gumbeltree.cli.encode_shards import progress_line
from gumbeltree.sharded import Job, ShardFolder, part_name, read_through
from gumbeltree.text.files import BadLineError
from gumbeltree.text.ids import TextCounts
from gumbeltree.text.lines import Line

JOB = Job(
    model="tiny",
    model_digest="a" * 64,
    width=3,
    input="/texts.txt",
    input_size=40,
    input_digest="b" * 64,
    column="",
    pretokenized=False,
    skip_bad=False,
    shard_rows=4,
)


def lines(count):
    return (Line(2 * row + 1, (f"text {row}",)) for row in range(count))


def vectors_of(texts):
    """Return vectors from which the number of each text can be told."""
    rows = [float(text.removeprefix("text ")) for text in texts]
    return np.array(rows, dtype=np.float32)[:, None] + np.float32([0, 0.25, 0.5])


def fill(path, count, job=JOB):
    """Complete the shards of `count` texts, and return the numbers of those that were missing."""
    with ShardFolder(path, job) as folder:
        shards = list(folder.missing(lines(count)))
        # workers finish in any order
        for shard in reversed(shards):
            folder.write(shard.number, vectors_of(shard.texts))
        assert folder.complete
    return [shard.number for shard in shards]


def expected(count):
    return vectors_of([f"text {row}" for row in range(count)])


def index_of(path):
    return json.loads((path / "index.json").read_text("utf-8"))


@pytest.mark.parametrize("count", [0, 1, 4, 11])
def test_order_is_kept(tmp_path, count):
    path = tmp_path / "out"
    fill(path, count)
    names = sorted(file.name for file in path.glob("*.npy"))
    assert names == [part_name(number) for number in range(-(-count // 4))]
    parts = [np.load(path / name) for name in names]
    assert all(part.dtype == np.float32 for part in parts)
    assert [len(part) for part in parts[:-1]] == [4] * (len(parts) - 1)
    np.testing.assert_array_equal(np.concatenate([np.empty((0, 3)), *parts]), expected(count))
    index = index_of(path)
    assert index["rows"] == count
    assert [part["rows"] for part in index["shards"].values()] == [len(part) for part in parts]
    assert index["job"] == dataclasses.asdict(JOB)


def test_shards_know_their_lines(tmp_path):
    with ShardFolder(tmp_path / "out", JOB) as folder:
        shards = [shard[2:] for shard in folder.missing(lines(5))]
    assert shards == [(1, 7), (9, 9)]


def test_a_second_run_does_only_what_is_missing_or_damaged(tmp_path):
    path = tmp_path / "out"
    assert fill(path, 21) == [0, 1, 2, 3, 4, 5]
    assert fill(path, 21) == []
    (path / part_name(1)).unlink()
    content = bytearray((path / part_name(3)).read_bytes())
    content[-1] ^= 1
    (path / part_name(3)).write_bytes(content)
    (path / part_name(5)).write_bytes((path / part_name(5)).read_bytes()[:-1])
    before = (path / part_name(0)).stat().st_mtime_ns
    assert fill(path, 21) == [1, 3, 5]
    assert (path / part_name(0)).stat().st_mtime_ns == before
    np.testing.assert_array_equal(gumbeltree.open_vectors(path)[:], expected(21))


def test_an_error_keeps_finished_shards(tmp_path):
    path = tmp_path / "out"

    def bad():
        yield from lines(9)
        raise BadLineError("line 19")

    def run():
        with ShardFolder(path, JOB) as folder:
            for shard in folder.missing(bad()):
                folder.write(shard.number, vectors_of(shard.texts))

    with pytest.raises(BadLineError):
        run()
    assert index_of(path)["rows"] is None
    assert len(index_of(path)["shards"]) == 2
    with pytest.raises(ValueError, match="incomplete: 2 shards"):
        gumbeltree.open_vectors(path)
    assert fill(path, 11) == [2]


def test_a_failed_write_leaves_no_file(tmp_path, monkeypatch):
    path = tmp_path / "out"

    def fail(*_):
        raise OSError("disk full")

    with ShardFolder(path, JOB) as folder:
        monkeypatch.setattr(array_file, "write_header", fail)
        with pytest.raises(OSError, match="disk full"):
            folder.write(0, expected(4))
    assert sorted(file.name for file in path.iterdir()) == [".lock", "index.json"]


def test_a_killed_process_leaves_only_listed_shards(tmp_path, monkeypatch):
    path = tmp_path / "out"
    clock = itertools.count(step=3).__next__
    monkeypatch.setattr(sharded.time, "monotonic", clock)
    with ShardFolder(path, JOB) as folder:
        for shard in folder.missing(lines(12)):
            folder.write(shard.number, vectors_of(shard.texts))
        listed = index_of(path)["shards"]
        # the index is written every few seconds; the process is killed here
        monkeypatch.setattr(folder, "_save", lambda: None)
    assert len(listed) == 2
    (path / "part-00002.npy.0123.part").write_bytes(b"begun")
    assert fill(path, 12) == [2]
    assert not list(path.glob("*.part"))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("model_digest", "c" * 64, "digest of the model was aaaaaaaaaaaa, now cccccccccccc"),
        ("input_digest", "c" * 64, "digest of the input was bbbbbbbbbbbb, now cccccccccccc"),
        ("input_size", 41, "size of the input in bytes was 40, now 41"),
        ("shard_rows", 5, "--shard-rows was 4, now 5"),
        ("column", "review", "--text was , now review"),
        ("pretokenized", True, "--pretokenized was False, now True"),
        ("skip_bad", True, "--skip-bad was False, now True"),
    ],
)
def test_another_job_is_refused(tmp_path, field, value, message):
    path = tmp_path / "out"
    fill(path, 11)
    other = dataclasses.replace(JOB, **{field: value})
    with pytest.raises(ValueError, match=message) as error, ShardFolder(path, other):
        pass
    assert "choose another folder" in str(error.value)
    assert fill(path, 11) == []


def test_a_moved_input_and_model_are_the_same_job(tmp_path):
    fill(tmp_path / "out", 5)
    assert fill(tmp_path / "out", 5, dataclasses.replace(JOB, model="m", input="/x")) == []


def test_unsuitable_folders_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("")
    for path, kind, message in (
        ("file", NotADirectoryError, "is a file"),
        ("full", FileExistsError, "other files"),
        ("no/out", FileNotFoundError, "create it first"),
    ):
        with pytest.raises(kind, match=message), ShardFolder(tmp_path / path, JOB):
            pass
    fill(tmp_path / "out", 1)
    (tmp_path / "out" / "index.json").write_text('{"format": 1}')
    with pytest.raises(ValueError, match="damaged"), ShardFolder(tmp_path / "out", JOB):
        pass
    with pytest.raises(FileNotFoundError, match=r"no index\.json"):
        gumbeltree.open_vectors(tmp_path / "full")


def test_one_process_at_a_time(tmp_path):
    with (
        ShardFolder(tmp_path / "out", JOB),
        pytest.raises(OSError, match="another process"),
        ShardFolder(tmp_path / "out", JOB),
    ):
        pass


def test_open_vectors(tmp_path):
    fill(tmp_path / "out", 11)
    vectors, array = gumbeltree.open_vectors(tmp_path / "out"), expected(11)
    assert len(vectors) == 11
    assert vectors.shape == (11, 3)
    for rows in (
        *(0, 10, -1, np.int64(5)),
        *(slice(None), slice(3, 9), slice(9, 2, -3), slice(5, 5), slice(-2, 99)),
        *([8, 1, 1, -11], np.arange(11) % 2 == 0, np.array([[1, 2], [9, 0]])),
    ):
        np.testing.assert_array_equal(vectors[rows], array[rows])
    assert vectors[[]].shape == (0, 3)
    np.testing.assert_array_equal(np.concatenate(list(vectors.shards())), array)
    np.testing.assert_array_equal(np.array(list(vectors)), array)
    for rows in (11, -12, [3, 11], np.array([True])):
        with pytest.raises(IndexError):
            vectors[rows]
    with pytest.raises(TypeError):
        vectors[[0.5]]


def test_read_through(tmp_path):
    path = tmp_path / "x"
    for content, count in ((b"", 0), (b"a\nb\n", 2), (b"a\nb", 2)):
        path.write_bytes(content)
        size, digest, found = read_through(path)
        assert (size, found) == (len(content), count)
        assert digest == sharded._digest(path)


def test_progress_line():
    assert progress_line(3, 10, 20, 2.0, None) == "3 shards, 30 texts, 10/s"
    line = progress_line(1, 0, 2000, 1.0, 10_000_000)
    assert line == "1 shard, 2,000 texts, 2,000/s, about 1:23:19 left"
    assert progress_line(1, 0, 5, 1.0, 4).endswith("about 0:00:00 left")


def test_counts_add_up():
    total = TextCounts()
    total.add(TextCounts(2, 9, 1, 1, 5, 0))
    total.add(TextCounts(1, 3, 0, 1, 5, 1))
    assert total == TextCounts(3, 12, 1, 2, 5, 1)
