"""What the judge rests on: the queue of notes, the memory of fates, the names services leave in a pool."""

import threading

import numpy as np
import pytest

from mindie_kvpool_plugin.core import block_keys
from mindie_kvpool_plugin.core.block_keys import Service, data_keys, next_service_keys, service_keys, service_of
from mindie_kvpool_plugin.core.why import fates
from mindie_kvpool_plugin.core.why.fates import Fates, keys_of
from mindie_kvpool_plugin.core.why.notes import LeftNote, Notes
from mindie_kvpool_plugin.core.why.services import EVERY_S, MAX_SERVICES, Announcement, Services

from .parts import Rank, prompt

OWN = Service("default", "0" * 32, "0of1")


def digests(*numbers):
    return np.array([[number, 0] for number in numbers], dtype=np.uint64)


# -- notes -------------------------------------------------------------------------------------------------


def test_notes_beyond_the_bound_are_lost_and_counted():
    """The judge may be slow; the step never waits, and memory stays bounded."""
    notes = Notes(capacity=3)
    for number in range(5):
        notes.append(LeftNote(0.0, number))
    assert notes.lost == 2
    assert [notes.take().sequence_id for _ in range(3)] == [0, 1, 2]
    notes.append(LeftNote(0.0, 9))
    assert notes.lost == 2


def test_looking_at_waiting_notes_takes_none():
    """They keep their order."""
    notes = Notes()
    for number in range(3):
        notes.append(LeftNote(0.0, number))
    assert notes.take().sequence_id == 0
    assert [note.sequence_id for note in notes.waiting()] == [1, 2]
    notes.append(LeftNote(0.0, 3))
    assert [note.sequence_id for note in notes.waiting()] == [1, 2, 3]
    notes.end()
    assert [notes.take().sequence_id for _ in range(3)] == [1, 2, 3]
    assert notes.take() is None


def test_notes_that_were_looked_at_count_as_waiting():
    """A judge that looks ahead at every prompt does not make room by it."""
    notes = Notes(capacity=3)
    for number in range(9):
        notes.append(LeftNote(0.0, number))
        list(notes.waiting())
    assert notes.lost == 6


def test_a_mark_is_reached_after_what_was_noted_before():
    """Whoever waits for it waits for all of that."""
    notes = Notes()
    notes.append(LeftNote(0.0, 1))
    mark = notes.mark()
    assert isinstance(mark, threading.Event)
    assert notes.take().sequence_id == 1
    assert notes.take().is_reached is mark


# -- fates -------------------------------------------------------------------------------------------------


def test_fates_are_bounded_and_know_since_when_they_are_whole():
    """The least recently heard of leave first."""
    memory = Fates(10.0, capacity=3)
    for number in range(5):
        memory.note(digests(number), fates.STORED, 100.0 + number)
    assert (len(memory), memory.since_s) == (3, 101.0)
    assert memory.of(keys_of(digests(1))[0]) is None
    assert memory.of(keys_of(digests(4))[0]).word == fates.STORED


def test_seeing_a_block_again_changes_nothing_but_keeps_it():
    """Its fate is what was done with it."""
    memory = Fates(0.0, capacity=2)
    memory.note(digests(1, 2), fates.QUEUE_FULL, 1.0)
    memory.saw(digests(1), 2.0)
    memory.saw(digests(3), 2.0)
    assert memory.of(keys_of(digests(1))[0]) == (fates.QUEUE_FULL, 1.0)
    assert memory.of(keys_of(digests(2))[0]) is None


def test_a_block_that_was_stored_is_not_on_its_way_when_it_is_offered_again():
    """If the pool lacks it, it was lost; a put that is refused then is news."""
    memory = Fates(0.0)
    memory.note(digests(1), fates.STORED, 1.0)
    memory.note(digests(1), fates.OFFERED, 2.0)
    assert memory.of(keys_of(digests(1))[0]).word == fates.STORED
    memory.note(digests(1), fates.PUT_FAILED, 3.0)
    assert memory.of(keys_of(digests(1))[0]).word == fates.PUT_FAILED


@pytest.mark.parametrize("before", [fates.STORED, fates.QUEUE_FULL, fates.WITHDRAWN, fates.PUT_FAILED])
def test_who_cannot_name_a_block_does_not_change_what_became_of_it(before):
    """It was dropped first, and is of uncertain content to the next sequence because of that."""
    memory = Fates(0.0)
    memory.note(digests(1), before, 1.0)
    memory.note(digests(1, 2), fates.UNCERTAIN, 2.0)
    assert [memory.of(key).word for key in keys_of(digests(1, 2))] == [before, fates.UNCERTAIN]


def test_what_was_not_offered_when_its_sequence_left_was_not_stored():
    """Blocks with a fate of their own keep it."""
    memory = Fates(0.0)
    memory.saw(digests(1, 2), 1.0)
    memory.note(digests(2), fates.STORED, 2.0)
    memory.left(digests(1, 2, 3), 3.0)
    words = [memory.of(key) and memory.of(key).word for key in keys_of(digests(1, 2, 3))]
    assert words == [fates.NOT_OFFERED, fates.STORED, None]


# -- services ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("service", [OWN, Service("team-b.x_1", "0123456789abcdef" * 2, "12of16")])
def test_a_name_is_spelt_letter_by_letter(service):
    """Each key follows from the one before, and the last one says who it is."""
    keys = service_keys(service)
    for before, key in zip(["", *keys], keys, strict=False):
        assert key in next_service_keys(before)
    assert [service_of(key) for key in keys[:-1]] == [None] * (len(keys) - 1)
    assert service_of(keys[-1]) == service
    assert len({*keys}) == len(keys)


def test_services_are_found_by_asking_alone():
    """Two namespaces, two fingerprints with a common beginning; the own one is left out."""
    others = [
        Service("a", "12" * 16, "0of2"),
        Service("a", "12" * 15 + "34", "0of1"),
        Service("default", "f" * 32, "0of1"),
    ]
    stored = {key for each in (OWN, *others) for key in service_keys(each)}
    asked = []

    def ask(keys):
        asked.append(len(keys))
        return [key in stored for key in keys]

    assert sorted(Services(OWN, ask).others()) == sorted(others)
    assert len(asked) <= max(len(service_keys(each)) for each in (OWN, *others))
    assert max(asked) <= 67 * 4


def test_a_search_is_bounded_and_repeated_after_a_minute():
    """However many there are, and also when the pool does not answer."""
    stored = {key for number in range(100) for key in service_keys(OWN._replace(fingerprint=f"{number:032x}"))}
    now, asked = [0.0], []

    def ask(keys):
        asked.append(len(keys))
        return [key in stored for key in keys]

    services = Services(OWN, ask, clock=lambda: now[0])
    found = services.others()
    assert 0 < len(found) <= MAX_SERVICES
    assert max(asked) <= 67 * MAX_SERVICES
    count = len(asked)
    services.others()
    assert len(asked) == count
    now[0] = EVERY_S
    services.others()
    assert len(asked) > count
    assert Services(OWN, lambda keys: None).others() == []


def test_a_name_is_left_again_from_time_to_time():
    """The pool may have lost it."""
    now = [0.0]
    announcement = Announcement(OWN, clock=lambda: now[0])
    assert announcement.due() == service_keys(OWN)
    assert announcement.due() == []
    now[0] = EVERY_S
    assert announcement.due() == service_keys(OWN)


def test_the_keys_of_a_rank_are_those_of_its_service():
    """One format, in one place."""
    rank = Rank()
    hexes = block_keys.hex_digests(block_keys.digest_chain(np.array(prompt(1, 2)), 4))
    assert rank.keys.data(hexes) == data_keys(rank.keys.service, hexes)
    assert rank.keys.data(hexes)[0] == f"ns/{'f' * 32}/{hexes[0]}/0of1"
