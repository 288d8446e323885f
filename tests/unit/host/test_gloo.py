"""The names of torch the ranks agree by: looked for once, replaced or missed with one clear error."""

import logging
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist

from mindie_kvpool_plugin.errors import HostCompatError
from mindie_kvpool_plugin.host import gloo
from mindie_kvpool_plugin.host.agreement import Agreement

JOIN_S = 60.0


def agree(lengths, group):
    """What every rank hears; the groups are let go of before this returns."""
    heard = [None] * len(lengths)

    def run(rank):
        agreement = Agreement(rank, len(lengths), "auto", group, 10.0)
        heard[rank] = agreement.minimum(np.array([lengths[rank]], dtype=np.int64)).tolist()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(lengths))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_S)
    return heard


def stripped(*names):
    """``torch.distributed`` without some of the names that are needed of it."""
    return SimpleNamespace(**{name: getattr(dist, name) for name in gloo.PUBLIC if name not in names})


def group_without(name):
    """The type of a Gloo group without one of torch's own names."""
    options = SimpleNamespace(**{own: None for own in gloo.PRIVATE if own != name})
    known = {"_Options": options, "create_device": None}
    return SimpleNamespace(**{own: value for own, value in known.items() if own != name})


def test_this_torch_has_every_name():
    """No fallback is taken with the torch these tests run on, oldest and newest alike."""
    assert gloo.probe(dist) == gloo.Found((), takes_address=True)


@pytest.mark.parametrize("name", ["_Options", "create_device", *gloo.PRIVATE])
def test_a_group_without_a_name_of_torchs_own_is_not_told_its_address(name):
    """Each of them is looked for."""
    distributed = stripped()
    distributed.ProcessGroupGloo = group_without(name)
    assert gloo.probe(distributed) == gloo.Found((), takes_address=False)


@pytest.mark.parametrize("name", gloo.PUBLIC)
def test_a_torch_without_gloo_is_one_error_with_its_version(monkeypatch, name):
    """Import goes well; who needs a group hears what is missing, and of which torch."""
    monkeypatch.setattr(gloo, "FOUND", gloo.probe(stripped(name)))
    with pytest.raises(
        HostCompatError, match=rf"torch {torch.__version__[:3]}.*{name}.*expected a torch built with Gloo"
    ):
        Agreement(0, 2, "auto", "test no gloo", 1.0)


def test_ranks_agree_by_public_names_only(monkeypatch, caplog):
    """Where torch took its own names away, Gloo chooses the address, and the log says how to correct it."""
    monkeypatch.setattr(gloo, "FOUND", gloo.Found((), takes_address=False))
    with caplog.at_level(logging.WARNING, logger="mindie_kvpool_plugin"):
        assert agree([5, 3], "test public") == [[3], [3]]
    assert "GLOO_SOCKET_IFNAME" in caplog.text


def test_ranks_agree_when_the_options_changed_their_meaning(monkeypatch, caplog):
    """The names are there, and what is given to them is refused."""

    def refuse(timeout, address):
        raise TypeError(f"no device at {address} for {timeout}")

    monkeypatch.setattr(gloo, "_options", refuse)
    with caplog.at_level(logging.WARNING, logger="mindie_kvpool_plugin"):
        assert agree([5, 3], "test changed") == [[3], [3]]
    assert "no device at 127.0.0.1" in caplog.text
