"""Adapters are named by their content, and told apart as the scheduler tells them apart."""

import threading
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from mindie_kvpool_plugin.host.adapters import Adapters, extra_hash
from tests.conftest import wait_until

JOIN_S = 10.0


class Wrapper:
    """A model wrapper whose adapter manager knows directories."""

    def __init__(self, **directories):
        self.adapter_manager = SimpleNamespace(adapter_info_registry={})
        for name, directory in directories.items():
            self.load(name, directory)

    def load(self, name, directory):
        self.adapter_manager.adapter_info_registry[name] = SimpleNamespace(adapter_path=str(directory))


@pytest.fixture(autouse=True)
def own_temporary_directory(tmp_path, monkeypatch):
    (tmp_path / "shared").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "shared"))


def adapter(directory, content):
    directory.mkdir()
    (directory / "adapter_config.json").write_text("{}")
    (directory / "adapter_model.safetensors").write_bytes(content * 100)
    return directory


def learnt(wrapper, *names):
    adapters = Adapters(wrapper)
    for name in names:
        adapters.learn(name)
    return adapters


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a", 0x454DDEE488C1ED6B),
        ("adapter-1", 0xF3C000274CDA37D9),
        ("adapter-2", 0x4D144AA552D87CF7),
        ("12345678", 0x8C5B90A33A04DCA5),
        ("a-longer-name-of-an-adapter/v2", 0x4673E187AC842B2D),
        ("中文", 0x88C3D66952A4013F),
    ],
)
def test_extra_hash_is_the_schedulers(name, expected):
    """Golden values of std::hash<std::string>(name) | 1 with libstdc++."""
    assert extra_hash(name) == expected


def test_equal_content_has_one_root_and_other_content_another(tmp_path):
    """Two machines keep an adapter under different paths; another training run has another root."""
    one, two, three = (adapter(tmp_path / n, c) for n, c in (("a", b"x"), ("b", b"x"), ("c", b"y")))
    roots = [learnt(Wrapper(lora=directory), "lora").find("lora").root for directory in (one, two, three)]
    assert roots[0] == roots[1] != roots[2]


def test_a_prompt_does_not_wait_for_an_adapter_to_be_read(tmp_path, monkeypatch):
    """The first prompt goes without, a thread reads, later ones are pooled."""
    started, go_on = threading.Event(), threading.Event()
    learn = Adapters.learn

    def slow(self, name):
        started.set()
        assert go_on.wait(JOIN_S)
        learn(self, name)

    monkeypatch.setattr(Adapters, "learn", slow)
    adapters = Adapters(Wrapper(lora=adapter(tmp_path / "a", b"x")))
    assert adapters.find("lora") is None
    assert started.wait(JOIN_S)
    (reader,) = [thread for thread in threading.enumerate() if thread.name == "kvpool-adapter"]
    go_on.set()
    reader.join(JOIN_S)
    assert adapters.find("lora") is not None


def test_an_adapter_is_named_by_the_files_that_were_loaded(tmp_path):
    """Not by what an operator has put there since, to load it later."""
    directory = adapter(tmp_path / "a", b"x")
    wrapper = Wrapper(lora=directory, base="")
    adapters = Adapters(wrapper)
    adapters.learn_loaded()
    (directory / "adapter_model.safetensors").write_bytes(b"y" * 100)
    assert adapters.find("lora").root == learnt(Wrapper(l=adapter(tmp_path / "b", b"x")), "l").find("l").root
    assert set(adapters.known()) == {"lora"}, "what stands for no adapter has no files"


def test_another_adapter_that_comes_meanwhile_is_no_reason_to_read_this_one_later(tmp_path, monkeypatch):
    """Later its files may be others than those that were loaded."""
    adapters = Adapters(Wrapper(lora=adapter(tmp_path / "a", b"x")))
    read = Adapters._content
    monkeypatch.setattr(Adapters, "_content", lambda self, name: (read(self, name), self.forget("other"))[0])
    adapters.learn("lora")
    assert adapters.find("lora") is not None


def test_a_prompt_that_finds_no_thread_leaves_the_adapter_to_the_next_one(tmp_path, monkeypatch):
    """The engine goes on without the pool for that one."""
    adapters = Adapters(Wrapper(lora=adapter(tmp_path / "a", b"x")))
    with monkeypatch.context() as out_of_threads:
        out_of_threads.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        assert adapters.find("lora") is None
    assert adapters.find("lora") is None
    wait_until(lambda: adapters.find("lora") is not None, JOIN_S, "the adapter is read")


def test_an_adapter_loaded_again_under_its_name_is_another_one(tmp_path):
    """What running sequences hold of the old one is not current any more."""
    wrapper = Wrapper(lora=adapter(tmp_path / "a", b"x"))
    adapters = learnt(wrapper, "lora")
    old = adapters.find("lora")
    assert adapters.is_current(old)
    adapters.forget("lora")
    assert not adapters.is_current(old)
    wrapper.load("lora", adapter(tmp_path / "b", b"y"))
    adapters.learn("lora")
    assert adapters.find("lora").root != old.root


def test_an_adapter_that_changes_while_it_is_read_is_not_taken(tmp_path, monkeypatch):
    """Unloaded and loaded again in the middle: nobody knows what was read."""
    adapters = Adapters(Wrapper(lora=adapter(tmp_path / "a", b"x")))
    read = Adapters._content
    monkeypatch.setattr(Adapters, "_content", lambda self, name: (read(self, name), self.forget(name))[0])
    adapters.learn("lora")
    assert not adapters._known


@pytest.mark.parametrize("directory", [None, "nowhere"])
def test_an_adapter_the_host_does_not_know_is_not_pooled(tmp_path, directory):
    """Just unloaded, or its directory is gone; the log says so."""
    wrapper = Wrapper(**({"lora": tmp_path / directory} if directory else {}))
    assert learnt(wrapper, "lora").find("lora") is None


def test_without_an_adapter_manager_the_name_stands_for_the_content():
    """Nothing can be loaded at run time there."""
    adapters = Adapters(SimpleNamespace())
    one, two = adapters.find("one"), adapters.find("two")
    assert one.root != two.root
    assert adapters.find("one") is one
