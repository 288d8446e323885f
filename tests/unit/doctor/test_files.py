"""Permissions, and the pool file as start-up reads it."""

import json
import os
import pwd

import pytest

from tests.unit.doctor.conftest import case_of, told, troubles

NOBODY = "nobody"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may look at files for another user")


@pytest.fixture
def open_folder(tmp_path):
    """A folder that everybody may pass, below folders that everybody may pass."""
    for each in (tmp_path, *tmp_path.parents):
        if each.stat().st_uid == os.geteuid() and not each.stat().st_mode & 1:
            each.chmod(each.stat().st_mode | 0o011)
    return tmp_path


@pytest.mark.parametrize(("mode", "expected"), [(0o640, []), (0o666, ["permissions.writable"])])
def test_nobody_else_may_write_the_pool_file(pool_path, mode, expected):
    """MindIE-LLM refuses a file that anybody may write."""
    lines = told(case_of(pool_path({}, mode)), "permissions")
    assert troubles(lines) == expected


@needs_root
@pytest.mark.parametrize(("mode", "expected"), [(0o644, []), (0o640, ["permissions.unreadable"])])
def test_the_services_user_must_read_the_pool_file(open_folder, pool_path, mode, expected):
    """Not whoever runs the doctor."""
    assert troubles(told(case_of(pool_path({}, mode), user=NOBODY), "permissions")) == expected


@needs_root
def test_the_services_user_must_reach_the_pool_file(open_folder, pool_path):
    """The folder that is closed is named."""
    path = pool_path({}, 0o644)
    open_folder.chmod(0o700)
    lines = told(case_of(path, user=NOBODY), "permissions")
    assert troubles(lines) == ["permissions.folder"]
    assert lines["permissions.folder"].params["folder"] == open_folder


@needs_root
def test_a_group_may_read_what_others_may_not(open_folder, pool_path):
    """By the groups of that user."""
    path = pool_path({}, 0o640)
    os.chown(path, 0, pwd.getpwnam(NOBODY).pw_gid)
    assert troubles(told(case_of(path, user=NOBODY), "permissions")) == []


def test_a_folder_open_to_all_is_a_warning(pool_path, tmp_path):
    """Anybody may put another file in its place; not with the sticky bit."""
    path = pool_path({})
    tmp_path.chmod(0o777)
    assert "permissions.folder_writable" in told(case_of(path), "permissions")
    tmp_path.chmod(0o1777)
    assert "permissions.right" in told(case_of(path), "permissions")


def test_a_user_that_is_not_there(pool_path):
    """Named."""
    assert troubles(told(case_of(pool_path({}), user="no-such-user"), "permissions")) == ["permissions.no_user"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"kv_pool": {"namespace": ""}, "local_hostname": "a", "master_server_address": "b:1"}, "pool_file.refused"),
        ({"kv_pool": {}}, "pool_file.refused"),
    ],
)
def test_a_pool_file_that_start_up_refuses(pool_path, content, expected):
    """In the words of start-up."""
    path = pool_path({})
    path.write_text(json.dumps(content))
    lines = told(case_of(path), "pool_file", "address", "transfer")
    assert troubles(lines) == [expected]
    assert str(path) in lines[expected].text("en")
    assert {"address.not_tried", "transfer.not_tried"} <= lines.keys()


def test_a_pool_file_without_our_section(pool_path):
    """The host's own pooling would run."""
    path = pool_path({})
    path.write_text(json.dumps({"local_hostname": "127.0.0.1", "master_server_address": "127.0.0.1:1"}))
    assert troubles(told(case_of(path), "pool_file")) == ["pool_file.no_section"]


@pytest.mark.parametrize(
    ("switch", "expected"),
    [({}, "pool_file.none"), ({"backend": "unifiedcache", "configPath": "{pool}"}, "pool_file.backend")],
)
def test_a_configuration_that_names_no_pool_of_ours(tmp_path, pool_path, switch, expected):
    """No pool file, or a backend that is not ours."""
    pool, config = pool_path({}), tmp_path / "config.json"
    switch = {key: value.format(pool=pool) for key, value in switch.items()}
    config.write_text(json.dumps({"BackendConfig": {"kvPoolConfig": switch}}))
    assert troubles(told(case_of(config), "pool_file")) == [expected]


def test_errors_of_the_check_are_told_one_by_one(pool_path):
    """With code and place; a sum behind them."""
    path = pool_path({"local_hostname": "127.0.0.1", "master_server_address": 7})
    lines = told(case_of(path), "check")
    assert lines["check.error"].text("en").startswith(f"{path}:1: ")
    assert lines["check.error"].fix("zh")
    assert lines["check.errors"].params["errors"] >= 1
