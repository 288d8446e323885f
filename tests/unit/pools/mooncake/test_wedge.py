"""When a client counts as having lost a peer."""

from mindie_kvpool_plugin.pools.mooncake.wedge import STALE_S, WedgeWatch


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


def test_a_peer_that_is_gone_is_not_suspected_for_good():
    """It is met no more, so no success clears it; meanwhile every piece asks once more where its blocks lie."""
    now = 0.0
    watch = WedgeWatch(strikes=3, span_s=60, clock=lambda: now)
    watch.observe({"gone": False})
    now = STALE_S
    assert watch.is_suspicious
    watch.observe({"lost": False})
    now = STALE_S + 1.0
    assert watch.is_suspicious, "the other one is not"
    assert watch.observe({"gone": False}) == []
    assert [watch.observe({"lost": False}) for _ in range(2)] == [[], []]
    now = 2 * STALE_S
    assert watch.observe({"lost": False, "gone": False}) == ["lost"], "what it is suspected of begins anew"
    now = 4 * STALE_S
    assert not watch.is_suspicious
