"""How much memory is left, on the machine and in its container."""

import pytest

from mindie_kvpool_plugin.memory_room import memory_room


def test_room_is_what_the_kernel_calls_available():
    """On this machine there is some, and less than there is memory."""
    room = memory_room()
    assert room is not None
    assert 0 < room < 1 << 50


@pytest.fixture
def machine(tmp_path):
    """Files of a kernel: 8 GiB available, and nested control groups."""
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    8388608 kB\n")
    (proc / "self" / "cgroup").write_text("0::/outer/inner\n")
    (groups / "outer" / "inner").mkdir(parents=True)
    return proc, groups


def limit(folder, most, used):
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{used}\n")


@pytest.mark.parametrize(
    ("inner", "outer", "room"),
    [(("max", 5), None, 8 << 30), ((4 << 30, 1 << 30), None, 3 << 30), (("max", 5), (2 << 30, 1 << 30), 1 << 30)],
)
def test_a_container_has_what_its_groups_leave(machine, inner, outer, room):
    """The tightest group above the process counts."""
    proc, groups = machine
    limit(groups / "outer" / "inner", *inner)
    if outer is not None:
        limit(groups / "outer", *outer)
    assert memory_room(proc, groups) == room


def test_room_is_unknown_where_nobody_says(tmp_path):
    """Another kernel."""
    assert memory_room(tmp_path, tmp_path) is None
