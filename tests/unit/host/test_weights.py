"""The name of the weights: other weights never have the same, equal ones always."""

import os
from types import SimpleNamespace

import pytest

from mindie_kvpool_plugin.errors import HostCompatError
from mindie_kvpool_plugin.host import weights

CONFIG = '{"model_type": "qwen2"}'
SHARD = "model-00002-of-00003.safetensors"


class Wrapper(SimpleNamespace):
    __hash__ = object.__hash__


@pytest.fixture(autouse=True)
def own_temporary_directory(tmp_path, monkeypatch):
    """What ranks of a machine share lies where this test sees it."""
    (tmp_path / "shared").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "shared"))


def model(directory, seed=0, shards=3, size=300_000):
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(CONFIG)
    (directory / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    for number in range(1, shards + 1):
        content = bytes((seed * 31 + number + place * 7) % 251 for place in range(997)) * (size // 997)
        (directory / f"model-{number:05}-of-{shards:05}.safetensors").write_bytes(content)
    return directory


def test_equal_weights_have_one_name_wherever_they_lie(tmp_path):
    """Two machines keep the same model under different paths and share their blocks."""
    assert weights.name_of(str(model(tmp_path / "a"))) == weights.name_of(str(model(tmp_path / "b" / "c")))


def rewrite(path, at, content):
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: rewrite(d / SHARD, 10, b"head"),
        lambda d: rewrite(d / SHARD, 299_000 // 2, b"x" * 5000),
        lambda d: (d / SHARD).write_bytes((d / SHARD).read_bytes() + b"!"),
        lambda d: (d / SHARD).rename(d / "other.safetensors"),
        lambda d: (d / "config.json").write_text('{"model_type": "qwen3"}'),
        lambda d: (d / "quant_model_description.json").write_text('{"model_quant_type": "W8A8"}'),
        lambda d: (d / "model.safetensors.index.json").write_text('{"weight_map": {"a": "b"}}'),
    ],
    ids=["head", "content", "size", "name", "config", "quantisation", "index"],
)
def test_weights_replaced_in_place_get_another_name(tmp_path, change):
    """Also when the name was read a moment ago and is kept for the other ranks."""
    directory = model(tmp_path / "m")
    before = weights.name_of(str(directory))
    change(directory)
    after = weights.name_of(str(directory))
    assert after != before
    assert weights.name_of(str(directory)) == after


def test_equal_configurations_with_other_tensors_have_other_names(tmp_path):
    """A fine-tuned model beside its base: same files, same sizes."""
    names = {weights.name_of(str(model(tmp_path / str(seed), seed))) for seed in range(3)}
    assert len(names) == 3


def test_other_files_of_the_directory_do_not_matter(tmp_path):
    """A tokenizer or a log beside the weights changes no KV."""
    directory = model(tmp_path / "m")
    before = weights.name_of(str(directory))
    (directory / "tokenizer.json").write_text("{}")
    (directory / "notes.txt").write_text("x")
    assert weights.name_of(str(directory)) == before


def test_what_is_read_is_bounded_whatever_the_size(tmp_path, monkeypatch):
    """Terabytes of sparse shards: a head and some samples of each."""
    directory = model(tmp_path / "m", shards=1)
    for number in range(200):
        path = directory / f"huge-{number:03}.safetensors"
        path.touch()
        os.truncate(path, 5 << 30)
    read = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, count, at: read.append(count) or pread(fd, count, at))
    weights.name_of(str(directory))
    assert sum(read) <= 201 * (weights.HEAD_BYTES + 40 * weights.SAMPLE_BYTES)
    assert len(read) <= weights.MAX_SAMPLES + 201 * 2 + 1


def test_a_directory_is_read_once_for_all_ranks_of_a_machine(tmp_path, monkeypatch, caplog):
    """The first rank reads, the others take its answer."""
    directory = str(model(tmp_path / "m"))
    name = weights.name_of(directory)
    monkeypatch.setattr(weights, "_read", lambda files: pytest.fail("read again"))
    assert weights.name_of(directory) == name


@pytest.mark.parametrize("spoil", ["other_mode", "nonsense", "a_directory"])
def test_a_shared_file_that_others_could_have_written_is_not_believed(tmp_path, spoil):
    """The temporary directory belongs to everybody."""
    directory = str(model(tmp_path / "m"))
    name = weights.name_of(directory)
    (shared,) = (tmp_path / "shared").iterdir()
    if spoil == "other_mode":
        shared.write_text("0" * 64)
        shared.chmod(0o666)
    elif spoil == "nonsense":
        shared.write_text("../../etc/passwd")
    else:
        shared.unlink()
        shared.mkdir()
    assert weights.name_of(directory) == name


def test_the_directory_is_the_one_the_host_was_started_with(tmp_path):
    """Also for a wrapper that does not keep it; what the start said beats what the wrapper says."""
    wrapper = Wrapper()
    weights.remember(wrapper, tmp_path)
    assert weights.directory_of(wrapper) == str(tmp_path)
    assert weights.directory_of(Wrapper(model_id=str(tmp_path))) == str(tmp_path)


def test_unknown_weights_are_refused(tmp_path):
    """Neither the current directory nor nothing may stand for a model."""
    with pytest.raises(HostCompatError, match="cannot tell which weights Wrapper has loaded"):
        weights.directory_of(Wrapper())
    with pytest.raises(HostCompatError, match=r"cannot read the weight directory .*nowhere"):
        weights.directory_of(Wrapper(model_id=str(tmp_path / "nowhere")))


def test_weights_that_cannot_be_read_are_refused_with_the_place(tmp_path, monkeypatch):
    """A shard the service's user may not read."""
    directory = model(tmp_path / "m")
    opened = os.open

    def refuse(path, *rest):
        if str(path).endswith(SHARD):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *rest)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(HostCompatError, match=rf"Permission denied.*{SHARD}"):
        weights.name_of(str(directory))


def test_a_name_that_is_no_directory_stands_for_itself(caplog):
    """Two of them do not share blocks, and the log says what that rests on."""
    assert weights.name_of("hub/one") != weights.name_of("hub/two")
    assert "no directory on this machine" in caplog.text


def test_a_model_without_shards_is_warned_about(tmp_path, caplog):
    """Nothing but its configuration tells it apart."""
    weights.name_of(str(model(tmp_path / "m", shards=0)))
    assert "no weight shard lies in" in caplog.text


def test_weights_are_those_that_were_there_before_they_were_loaded(tmp_path):
    """A file more, less, longer or newer is another model's; a look that nobody had is no reason."""
    shard = tmp_path / "model.safetensors"
    shard.write_bytes(b"x" * 10)
    seen = weights.look(tmp_path)
    weights.refuse_changed(str(tmp_path), seen)
    (tmp_path / "notes.txt").write_text("no part of the model")
    weights.refuse_changed(str(tmp_path), seen)
    os.utime(shard, ns=(1, 1))
    with pytest.raises(HostCompatError, match=r"changed while they were loaded \(model.safetensors\)"):
        weights.refuse_changed(str(tmp_path), seen)
    weights.refuse_changed(str(tmp_path), None)
    assert weights.look(tmp_path / "nowhere") is None
    assert weights.look(None) is None
