"""``status`` and the libpython that the daemon loads: its version decides, not that of the python3 of PATH."""

import shutil
import subprocess
import sys

import pytest

from mindie_kvpool_plugin.host.interpreters.launches import Library, daemons_library, script_interpreter

from .service import SYSTEM_PATH, Interpreter, base_python, status

pytestmark = pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("ldd")), reason="needs gcc and ldd")

OURS = sys.version_info.minor


def build_daemon(home, prefix, minor):
    """A program that loads a library of that name, as MindIE-LLM's does; neither holds anything."""
    library = prefix / "lib" / f"libpython3.{minor}.so.1.0"
    for folder in (home / "bin", library.parent, prefix / "bin"):
        folder.mkdir(parents=True, exist_ok=True)
    source = prefix / "empty.c"
    source.write_text("int nothing(void) { return 0; }\n")
    compiled = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", library, source]
    subprocess.run(compiled, check=True)
    source.write_text("int nothing(void); int main(void) { return nothing(); }\n")
    linked = ["gcc", "-o", home / "bin" / "mindieservice_daemon", source, library, f"-Wl,-rpath,{library.parent}"]
    subprocess.run(linked, check=True)
    return library


@pytest.fixture
def good(tmp_path):
    found = Interpreter(tmp_path / "env").add_host().install()
    found.add_backend()
    return found


def ask(good, tmp_path, *path):
    return status(path=[*path, good.bin, SYSTEM_PATH], MINDIE_LLM_HOME_PATH=str(tmp_path / "home"))


def test_the_library_of_the_daemon_is_found(tmp_path):
    """The loader is asked; nothing of the program runs."""
    library = build_daemon(tmp_path / "home", tmp_path / "prefix", 10)
    assert daemons_library({"MINDIE_LLM_HOME_PATH": str(tmp_path / "home"), "PATH": SYSTEM_PATH}) == Library(
        10, library
    )
    library.unlink()
    assert daemons_library({"MINDIE_LLM_HOME_PATH": str(tmp_path / "home"), "PATH": SYSTEM_PATH}) == Library(10, None)
    assert daemons_library({"PATH": str(tmp_path)}) is None


def test_a_library_of_the_same_version_changes_nothing(good, tmp_path):
    """The usual installation."""
    build_daemon(tmp_path / "home", tmp_path / "prefix", OURS)
    found = ask(good, tmp_path)
    assert found.code == 0, found.text
    assert "note: the daemon loads" not in found.text


def test_another_version_than_the_librarys_is_not_taken_for_the_daemons(good, tmp_path):
    """The virtual environment is hooked, and the daemon of another version would not see it."""
    build_daemon(tmp_path / "home", tmp_path / "prefix", OURS + 50)
    found = ask(good, tmp_path)
    assert found.code == 1
    assert f"note: the daemon loads libpython 3.{OURS + 50}, the python3 of PATH is 3.{OURS}." in found.daemon
    assert "the interpreter of that libpython was not found" in found.daemon


def test_a_script_in_place_of_python3_leaves_where_the_library_was_built_for(good, tmp_path):
    """Not the interpreter that the script would start: an embedded Python does not run it."""
    build_daemon(tmp_path / "home", tmp_path / "prefix", OURS)
    (tmp_path / "prefix" / "bin" / f"python3.{OURS}").symlink_to(base_python())
    shim = tmp_path / "shims" / "python3"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {good.python} "$@"\n')
    shim.chmod(0o755)
    found = ask(good, tmp_path, shim.parent)
    assert found.code == 1
    assert f"this interpreter ({sys.base_prefix}) finds no mindie_llm" in found.daemon


def test_a_path_without_python3_leaves_where_the_library_was_built_for(good, tmp_path):
    """The daemon starts all the same: ``python3`` is looked for and need not be found."""
    build_daemon(tmp_path / "home", tmp_path / "prefix", OURS)
    (tmp_path / "prefix" / "bin" / f"python3.{OURS}").symlink_to(base_python())
    script = good.bin / "mindie_llm_backend"
    found = status("--worker", script, path=[tmp_path], MINDIE_LLM_HOME_PATH=str(tmp_path / "home"))
    assert found.code == 1
    assert f"this interpreter ({sys.base_prefix}) finds no mindie_llm" in found.daemon


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ("#!/usr/bin/python3.11\n", ("/usr/bin/python3.11",)),
        ("#! /usr/bin/python3 -E -s\n", ("/usr/bin/python3", "-E -s")),
        ("#!/usr/bin/env -S python3 -I\n", ("/usr/bin/env", "-S python3 -I")),
        ("#!/usr/bin/env -S A=1 python3\n", ("/usr/bin/env", "-S A=1 python3")),
        ("#!/bin/sh\n'''exec' /a/python3.11 \"$0\" \"$@\"\n' '''\n", ("/a/python3.11",)),
        ("#!/bin/sh\n'''exec' \"/a b/python3\" \"$0\" \"$@\"\n' '''\n", ("/a b/python3",)),
        ("#!/bin/bash\nexec python3\n", ()),
        ("#!/usr/bin/env bash\n", ()),
        ("\x7fELF", ()),
        ("", ()),
    ],
)
def test_first_lines_are_read_as_the_kernel_reads_them(head, words):
    """Everything behind the first word is one argument."""
    assert script_interpreter(head) == words
