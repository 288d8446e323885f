"""When a client counts as having lost a peer."""

from mindie_kvpool_plugin.pools.mooncake.wedge import WedgeWatch


def test_watch_needs_several_calls_over_time():
    """Neither many failures at once nor few over a long time are enough."""
    assert [WedgeWatch(strikes=3, span_s=60).observe({"peer": False}) for _ in range(9)] == [[]] * 9
    watch = WedgeWatch(strikes=3, span_s=0)
    assert [watch.observe({"peer": False}) for _ in range(3)] == [[], [], ["peer"]]
    assert watch.observe({"peer": False}) == []


def test_watch_starts_anew_when_the_peer_answers():
    """One good transfer clears a peer, and only that peer."""
    watch = WedgeWatch(strikes=2, span_s=0)
    watch.observe({"good": False, "bad": False})
    assert watch.is_suspicious
    assert watch.observe({"good": True, "bad": False}) == ["bad"]
    assert watch.observe({"good": False}) == []
    watch.forget()
    assert not watch.is_suspicious
