"""Every wait between our copies and what the device does, run twice: with it nothing is wrong, without it something is.

A slow stream stands for compute that still runs, slow copies for a transfer under way.  Without a wait only the
emulator is sure to show a wrong byte; a real NPU runs the guarded half.
"""

import threading

import numpy as np
import pytest

from mindie_kvpool_plugin.core.device_gate import DeviceGate
from mindie_kvpool_plugin.core.fence import Fence
from mindie_kvpool_plugin.core.spill import Spill
from mindie_kvpool_plugin.host import device_memory
from mindie_kvpool_plugin.host.device_copies import DEVICE_TO_HOST, HOST_TO_DEVICE, AclCopies
from mindie_kvpool_plugin.host.device_memory import CacheLayout, StagedMemory
from mindie_kvpool_plugin.host.in_flight import InFlight
from tests.npu.conftest import Raw
from tests.unit.core.parts import Rank, ScriptedPool, freed, prompt

pytestmark = [pytest.mark.npu, pytest.mark.parametrize("device", [1], indirect=True)]
JOIN_S = 60.0
SLOW_US = 60_000
BEFORE, OURS, OTHERS = 1, 7, 3
"""What a block holds: from the start, as the tokens of our sequence say, as another sequence's say."""
TOKENS, BLOCK, COPY = prompt(100, 1), 20, 21


class Place:
    """One rank's walks around a cache on the device, and the device's own doings."""

    def __init__(self, torch, device, emulator):
        self.torch, self.device, self.emulator = torch, device, emulator
        shape = (48, 8, 2, 16)
        layer = [torch.zeros(shape, dtype=torch.float16, device=device) for _ in range(2)]
        torch.npu.synchronize()
        self.layout = CacheLayout([tuple(layer)])
        self.raw = Raw()
        for block in (BLOCK, COPY):
            self.compute(block, BEFORE)
        self.memory = StagedMemory(self.layout, device.index, 8 * int(self.layout.sizes.sum()))
        self.flight = InFlight()
        self.pool = ScriptedPool()
        self.rank = self.walks(queue=100)

    def walks(self, queue):
        return Rank(self.pool, self.memory, queue=queue, device_idle=lambda: self.flight.wait(JOIN_S))

    def close(self):
        self.rank.spill.close()
        self.torch.npu.synchronize()

    # -- what the device does -------------------------------------------------------------------------------

    def bytes_of(self, value):
        return [np.full(size // 2, value, dtype=np.float16).tobytes() for size in self.layout.sizes.tolist()]

    def addresses(self, block):
        return self.layout.buffers(np.array([block])).addresses[0].tolist()

    def compute(self, block, value):
        """A kernel that is done when this returns."""
        for address, data in zip(self.addresses(block), self.bytes_of(value), strict=True):
            self.raw.write(address, data)

    def holds(self, block, value):
        sizes = self.layout.sizes.tolist()
        found = [self.raw.read(at, size) for at, size in zip(self.addresses(block), sizes, strict=True)]
        return found == self.bytes_of(value)

    def slow_stream(self):
        stream = self.torch.npu.Stream(device=self.device)
        if self.emulator is not None:
            self.emulator.fakecann_set_stream_delay_us(stream.npu_stream, SLOW_US)
        return stream

    def slow_copies(self):
        if self.emulator is not None:
            self.emulator.fakecann_set_delay_us(SLOW_US)

    def launch_batch(self, value, lands):
        """A batch that writes the block, launched by the host's forward thread; ``lands`` is what it does then."""
        batch, launched, stream = object(), threading.Event(), self.slow_stream()

        def forward():
            self.torch.npu.set_device(self.device)
            with self.torch.npu.stream(stream):
                for segment in self.layout.segments:
                    segment[BLOCK].fill_(value)
                launched.set()
                lands(batch, stream)

        self.flight.launch(batch)
        thread = threading.Thread(target=forward)
        thread.start()
        assert launched.wait(JOIN_S)
        return thread

    # -- what the pool has ----------------------------------------------------------------------------------

    def pooled_elsewhere(self):
        """The sequence's block is in the pool."""
        elsewhere = self.walks(queue=0)
        elsewhere.directory.rewrite(9, np.array([0]))
        self.compute(0, OURS)
        elsewhere.free(9, TOKENS, [0])

    def pool_is_right(self):
        """Nothing, or the sequence's bytes, lie under its key."""
        assert self.rank.spill.drain(JOIN_S)
        return {bytes(self.pool.value(key)) for key in self.pool.data_keys()} <= {b"".join(self.bytes_of(OURS))}

    def reload(self):
        return int(self.rank.reload.load([self.rank.hit(TOKENS, [BLOCK], 0, 1)])[0])

    def own(self):
        """Our sequence owns the block and will have computed it."""
        self.rank.directory.rewrite(1, np.array([BLOCK]))


@pytest.fixture
def place(torch, device, emulator):
    made = Place(torch, device, emulator)
    yield made
    made.close()


# -- what happens, and whether all is right afterwards --------------------------------------------------------


def reload_beside_a_batch(place):
    """The batch before still writes the block that a reload fills; its tokens will be known when it is done."""

    def lands(batch, stream):
        stream.synchronize()
        place.flight.meet(batch)
        place.flight.land(None)

    return _reload_beside(place, lands)


def reload_beside_tokens_on_the_device(place):
    """The same with tokens that stay on the device: an event tells when it is done."""

    def lands(batch, stream):
        place.flight.meet(batch)
        place.flight.land(device_memory.record_event(place.device))

    return _reload_beside(place, lands)


def _reload_beside(place, lands):
    place.pooled_elsewhere()
    thread = place.launch_batch(OTHERS, lands)
    length = place.reload()
    thread.join(JOIN_S)
    place.torch.npu.synchronize()
    return length == 1 and place.holds(BLOCK, OURS)


def reload_behind_a_copy(place):
    """The step thread has launched a copy out of the block that a reload fills (copy-on-write, swap-out)."""
    place.pooled_elsewhere()
    with place.torch.npu.stream(place.slow_stream()):
        for segment in place.layout.segments:
            segment[COPY].copy_(segment[BLOCK])
        length = place.reload()
    place.torch.npu.synchronize()
    return length == 1 and place.holds(BLOCK, OURS) and place.holds(COPY, BEFORE)


def reload_is_read_at_once(place):
    """Compute reads the block as soon as the reload has returned."""
    place.pooled_elsewhere()
    place.slow_copies()
    return place.reload() == 1 and place.holds(BLOCK, OURS)


def spill_of_a_block_still_computed(place):
    """A sequence is aborted while the batch that computes its block runs; the next batch is given the block."""

    def lands(batch, stream):
        stream.synchronize()
        place.flight.meet(batch)
        place.flight.land(None)

    place.own()
    place.rank.running[1] = (freed(1, TOKENS, [BLOCK]), np.ones(1, dtype=bool))
    thread = place.launch_batch(OURS, lands)
    place.rank.spill.before_write(2, np.array([BLOCK]))
    is_right = place.pool_is_right()
    thread.join(JOIN_S)
    return is_right


def overwrite_beside_a_spill(place):
    """A step writes the block that a spill reads."""
    _spill_slowly(place)
    place.rank.spill.before_write(2, np.array([BLOCK]))
    place.compute(BLOCK, OTHERS)
    return place.pool_is_right()


def spill_is_stored_at_once(place):
    """The pool reads the host's copy as soon as there is one."""
    _spill_slowly(place)
    return place.pool_is_right()


def repair_beside_a_spill(place):
    """The host closes the device, whose memory is lost, while a spill reads it."""
    reading, read = threading.Event(), place.memory.read
    place.memory.read = lambda block_ids: (reading.set(), read(block_ids))[1]
    _spill_slowly(place)
    assert reading.wait(JOIN_S)
    place.rank.gate.close()
    place.rank.spill.stop_reading()
    place.compute(BLOCK, 0)
    return place.pool_is_right()


def _spill_slowly(place):
    place.own()
    place.compute(BLOCK, OURS)
    place.slow_copies()
    place.rank.free(1, TOKENS, [BLOCK])


# -- the waits, and how each is taken away ---------------------------------------------------------------------


def without_the_batch(patch):
    patch.setattr(InFlight, "wait", lambda self, timeout_s: True)


def without_the_event(patch):
    patch.setattr(device_memory, "record_event", lambda device: None)


def without_the_own_stream(patch):
    patch.setattr(device_memory, "_synchronize", lambda device: None)


def without_the_fence(patch):
    patch.setattr(Fence, "wait", lambda self, block_ids, timeout_s: True)


def without_the_computed(patch):
    spill_abandoned = Spill._spill_abandoned
    patch.setattr(
        Spill,
        "_spill_abandoned",
        lambda self, writer, block_ids, is_computed: spill_abandoned(self, writer, block_ids, lambda: True),
    )


def without_the_copies(patch):
    def launch_only(self, starts, blocks, to_host):
        self._launch_all(starts, blocks, DEVICE_TO_HOST if to_host else HOST_TO_DEVICE, to_host)

    patch.setattr(AclCopies, "_copy_on_stream", launch_only)


def without_the_readers(patch):
    def close(self):
        self._is_open = False

    patch.setattr(DeviceGate, "close", close)
    patch.setattr(Spill, "stop_reading", lambda self: None)


WAITS = {
    "batch in flight, before a reload": (reload_beside_a_batch, without_the_batch),
    "event of a batch, before a reload": (reload_beside_tokens_on_the_device, without_the_event),
    "step thread's stream, before a reload": (reload_behind_a_copy, without_the_own_stream),
    "copies to the device, before compute": (reload_is_read_at_once, without_the_copies),
    "batch in flight, before a spill": (spill_of_a_block_still_computed, without_the_computed),
    "fence, before a block is written": (overwrite_beside_a_spill, without_the_fence),
    "copies to the host, before a put": (spill_is_stored_at_once, without_the_copies),
    "spills inside, before a repair": (repair_beside_a_spill, without_the_readers),
}


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "naive"])
@pytest.mark.parametrize("wait", WAITS)
def test_a_wait_keeps_blocks_whole(monkeypatch, place, wait, is_guarded):
    """What happens beside our copies leaves every block as it must be, and not without the wait."""
    happens, taken_away = WAITS[wait]
    if not is_guarded:
        if place.emulator is None:
            pytest.skip("only the emulator is sure to show a missing wait")
        taken_away(monkeypatch)
    assert happens(place) is is_guarded
