"""Order of events, and who gets a place when."""

from loadgen.core.simulate.events import Places, Timeline


def test_events_come_in_order_of_time_then_of_asking() -> None:
    timeline, seen = Timeline(0), []
    for t, name in ((5, "b"), (3, "a"), (5, "c"), (20, "late")):
        timeline.at(t, seen.append, name)
    timeline.at(4, lambda: timeline.after(0, seen.append, "at once"))
    timeline.run(20)
    assert seen == ["a", "at once", "b", "c"]
    assert timeline.now_ns == 20
    assert timeline.next_ns() == 20


def test_cancelled_events_do_not_happen_and_are_not_next() -> None:
    timeline, seen = Timeline(0), []
    cancelled = timeline.at(5, seen.append, "no")
    timeline.at(7, seen.append, "yes")
    timeline.cancel(cancelled)
    assert timeline.next_ns() == 7
    timeline.run(10)
    timeline.cancel(cancelled)
    assert (seen, timeline.processed, timeline.next_ns()) == (["yes"], 1, None)


def test_places_are_given_in_order_and_who_leaves_gets_none() -> None:
    places, seen = Places(1), []
    places.take(lambda: seen.append("first"))
    gone = places.take(lambda: seen.append("second"))
    places.take(lambda: seen.append("third"))
    places.leave(gone)
    assert (seen, places.longest) == (["first"], 2)
    places.give_back()
    assert seen == ["first", "third"]
    places.give_back()
    assert places.free == 1
