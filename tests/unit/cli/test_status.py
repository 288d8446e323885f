"""``status`` in every situation a service can be in: real interpreters, a real .pth file, a stand-in host."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mindie_kvpool_plugin.host.compat import PLACES

from .service import LIBRARIES, PACKAGE, STARTED, SYSTEM_PATH, Interpreter, base_python, status, status_json

HOOKED = "result: all hooks will be set, in the daemon and in the workers"
NOT_HOOKED = "result: not all hooks will be set"


@pytest.fixture
def interpreter(tmp_path):
    """One with a host, for daemon and workers alike; the package is still to be installed."""
    found = Interpreter(tmp_path / "env").add_host()
    found.add_backend()
    return found


@pytest.fixture
def good(interpreter):
    return interpreter.install()


def folders(interpreter):
    return [interpreter.bin, SYSTEM_PATH]


def test_all_is_well_when_one_interpreter_has_it_all(good):
    """Both interpreters, host, places and copy are named, no process of the service is started."""
    found = status(path=folders(good))
    assert (found.code, found.text.splitlines()[-1]) == (0, HOOKED)
    assert "note:" not in found.text
    for side in (found.daemon, found.worker):
        assert "start-up hook: active" in side
        assert f"{len(PLACES)} of {len(PLACES)} places fit" in side
        assert "MindIE-LLM: 3.0.0" in side
    assert not (good.folder / STARTED).exists()


def test_the_object_says_the_same(good):
    """For programs."""
    code, found = status_json(path=folders(good))
    assert (code, found["hooked"], found["differences"]) == (0, True, [])
    for side in ("daemon", "worker"):
        assert found[side]["hooked"] is True
        assert found[side]["problem"] is None
        assert found[side]["interpreter"]["is_armed"] is True
        assert found[side]["interpreter"]["places"] == len(PLACES)
        assert found[side]["interpreter"]["plugin"] == str(PACKAGE)


def test_the_daemons_interpreter_counts(good, tmp_path):
    """The package is where the workers run, and not in the python3 of PATH."""
    daemon = Interpreter(tmp_path / "daemon").add_host()
    found = status(path=[daemon.bin, good.bin, SYSTEM_PATH])
    assert found.code == 1
    assert f"not installed for this interpreter ({daemon.folder})" in found.daemon
    assert "all hooks will be set" in found.worker.partition("result")[0]
    assert NOT_HOOKED in found.text


def test_the_workers_interpreter_counts(good, tmp_path):
    """The other way round."""
    worker = Interpreter(tmp_path / "worker").add_host()
    script = worker.add_backend()
    found = status("--worker", script, path=folders(good))
    assert found.code == 1
    assert "STAYS OUT" not in found.daemon
    assert f"not installed for this interpreter ({worker.folder})" in found.worker


def test_two_interpreters_that_both_have_it_are_told_and_fine(good, tmp_path):
    """Other folders, the same versions."""
    worker = Interpreter(tmp_path / "worker").add_host().install()
    worker.add_backend(folder=tmp_path / "first")
    found = status(path=[tmp_path / "first", good.bin, SYSTEM_PATH])
    assert found.code == 0
    assert f"note: two interpreters: the daemon has {good.folder}, the workers have {worker.folder}" in found.text


def test_two_versions_of_the_package_are_no_pair(good, tmp_path):
    """Scheduler and workers have to mean the same keys."""
    worker = Interpreter(tmp_path / "worker").add_host().install(version="0.0.9")
    found = status("--worker", worker.add_backend(), path=folders(good))
    assert found.code == 1
    assert "DIFFERENT: the daemon has mindie-kvpool-plugin 0.1.0, the workers have 0.0.9" in found.text


def test_two_versions_of_the_host_are_no_pair(good, tmp_path):
    """The places fit in both, and still they were not made for each other."""
    worker = Interpreter(tmp_path / "worker").add_host(copied=True).install()
    init = worker.site / "mindie_llm" / "__init__.py"
    init.write_text(init.read_text(encoding="utf-8").replace("3.0.0", "3.0.1"))
    found = status("--worker", worker.add_backend(), path=folders(good))
    assert found.code == 1
    assert "DIFFERENT: the daemon has MindIE-LLM 3.0.0+simulator, the workers have 3.0.1+simulator" in found.text


def test_an_interpreter_without_a_host_stays_out(tmp_path):
    """A virtual environment of one's own, with the package and no mindie_llm."""
    found = Interpreter(tmp_path / "env").install()
    found.add_backend()
    said = status(path=folders(found))
    assert said.code == 1
    assert f"this interpreter ({found.folder}) finds no mindie_llm" in said.daemon
    assert "finds no mindie_llm" in said.worker


def test_a_folder_of_pip_target_is_not_enough(interpreter, tmp_path):
    """The package can be imported, its .pth file is not read."""
    interpreter.install(tmp_path / "target")
    found = status(path=folders(interpreter), PYTHONPATH=str(tmp_path / "target"))
    assert found.code == 1
    assert f"{tmp_path / 'target' / 'mindie_kvpool_plugin.pth'} lies in a folder" in found.daemon
    assert "install the wheel without --target" in found.daemon


def test_a_source_tree_in_pythonpath_is_not_enough(interpreter):
    """There is no .pth file at all."""
    found = status(path=folders(interpreter), PYTHONPATH=str(PACKAGE.parent))
    assert found.code == 1
    assert f"the package is at {PACKAGE}, its start-up file" in found.worker


def test_an_editable_installation_counts(interpreter):
    """Its .pth file names the source tree, ours comes after it."""
    (interpreter.site / "__editable__.mindie_kvpool_plugin-0.1.0.pth").write_text(f"{PACKAGE.parent}\n")
    interpreter.install()
    (interpreter.site / PACKAGE.name).unlink()
    found = status(path=folders(interpreter))
    assert found.code == 0, found.text
    assert f"0.1.0 at {PACKAGE}" in found.daemon


def test_a_package_that_left_its_start_up_file_behind_is_told(interpreter):
    """Half an uninstallation."""
    interpreter.install()
    (interpreter.site / PACKAGE.name).unlink()
    found = status(path=folders(interpreter))
    assert found.code == 1
    assert "mindie_kvpool_plugin.pth is there, the package that it loads is not" in found.daemon


def test_a_copy_that_cannot_be_imported_is_told(interpreter, tmp_path):
    """An old half of a copy stands before the installed one."""
    interpreter.install()
    (tmp_path / "old" / PACKAGE.name).mkdir(parents=True)
    (tmp_path / "old" / PACKAGE.name / "__init__.py").write_text('__version__ = "0.0.1"\n')
    found = status(path=folders(interpreter), PYTHONPATH=str(tmp_path / "old"))
    assert found.code == 1
    assert "cannot be imported: ModuleNotFoundError" in found.daemon
    assert f"{tmp_path / 'old' / PACKAGE.name} (0.0.1) is taken, not {PACKAGE} (0.1.0)" in found.daemon


def test_a_copy_in_the_shadow_of_another_is_named(good, tmp_path):
    """Both would do; which one is taken is what an operator has to know."""
    good.install(tmp_path / "old", version="0.0.9")
    found = status(path=folders(good), PYTHONPATH=str(tmp_path / "old"))
    assert found.code == 0, found.text
    assert f"{tmp_path / 'old' / PACKAGE.name} (0.0.9) is taken, not {PACKAGE} (0.1.0)" in found.worker


@pytest.fixture
def user_site(tmp_path):
    """An interpreter that is no virtual environment, and a home whose user site has the package."""
    python = base_python()
    env = {"HOME": str(tmp_path / "home"), "PATH": SYSTEM_PATH}
    asked = [str(python), "-c", "import site; print(site.getusersitepackages())"]
    folder = Path(subprocess.run(asked, capture_output=True, text=True, check=True, env=env).stdout.strip())
    helper = Interpreter(tmp_path / "helper").install(folder).add_host()
    for name in LIBRARIES:
        (folder / name).symlink_to(helper.site / name)
    (folder / "mindie_llm").symlink_to(helper.site / "mindie_llm")
    named = ["--daemon-python", python, "--worker", helper.add_backend(f"#!{python}")]
    return named, {"path": [SYSTEM_PATH], "HOME": env["HOME"]}, helper


def test_the_user_site_counts(user_site):
    """``pip install --user``, and the service runs as that user."""
    named, env, _ = user_site
    found = status(*named, **env)
    assert found.code == 0, found.text


def test_the_user_site_is_left_out_when_the_environment_says_so(user_site):
    """PYTHONNOUSERSITE: the host is elsewhere then, and the package is not read."""
    named, env, helper = user_site
    found = status(*named, **env, PYTHONNOUSERSITE="1", PYTHONPATH=str(helper.site))
    assert found.code == 1
    assert "is in the user site, which this interpreter leaves out" in found.daemon


def test_the_user_site_is_left_out_by_a_virtual_environment(user_site, interpreter):
    """It has a site-packages of its own."""
    _, env, _ = user_site
    found = status(path=folders(interpreter), HOME=env["HOME"])
    assert found.code == 1
    assert "is in the user site" in found.worker


def test_the_switch_is_seen(good):
    """MINDIE_KVPOOL_DISABLE=1."""
    found = status(path=folders(good), MINDIE_KVPOOL_DISABLE="1")
    assert found.code == 1
    assert "switched off by MINDIE_KVPOOL_DISABLE=1" in found.daemon
    assert "switched off by MINDIE_KVPOOL_DISABLE=1" in found.worker


@pytest.mark.parametrize(("option", "code"), [("-S", 1), ("-I", 0), ("-E", 0), ("-sE", 0)])
def test_options_of_the_first_line_count(good, option, code):
    """-S reads no .pth file; the others leave site-packages alone."""
    good.add_backend(f"#!{good.python} {option}")
    found = status(path=folders(good))
    assert found.code == code, found.text
    assert ("the interpreter is started with -S" in found.worker) == (option == "-S")


def test_options_that_ignore_the_environment_count(interpreter, good, tmp_path):
    """-E: the daemon finds its host by PYTHONPATH, the workers do not."""
    hosts = Interpreter(tmp_path / "hosts").add_host()
    (interpreter.site / "mindie_llm").unlink()
    interpreter.add_backend(f"#!{interpreter.python} -E")
    found = status(path=folders(interpreter), PYTHONPATH=str(hosts.site))
    assert found.code == 1
    assert "STAYS OUT" not in found.daemon
    assert "finds no mindie_llm" in found.worker


def test_a_host_that_changed_is_named_place_by_place(interpreter):
    """The place, what is wrong with it and what it is needed for."""
    (interpreter.site / "mindie_llm").unlink()
    interpreter.add_host(copied=True).install()
    path = interpreter.site / "mindie_llm/text_generator/utils/tg_infer_context_store.py"
    path.write_text(path.read_text().replace("def reset_all_context(", "def reset_everything("))
    found = status(path=folders(interpreter))
    assert found.code == 1
    for side in (found.daemon, found.worker):
        assert "reset_all_context: DOES NOT FIT" in side
        assert f"{len(PLACES) - 1} of {len(PLACES)} places fit" in side
        assert "1 places of MindIE-LLM 3.0.0+simulator do not fit" in side


def test_a_host_of_bytecode_only_fits_and_one_of_nothing_is_told(interpreter):
    """Images may leave the sources out; what is compared is the code, of the one or the other."""
    (interpreter.site / "mindie_llm").unlink()
    interpreter.add_host(copied=True).install()
    host = interpreter.site / "mindie_llm"
    subprocess.run([interpreter.python, "-m", "compileall", "-q", "-b", host], check=True)
    for source in host.rglob("*.py"):
        source.unlink()
    assert status(path=folders(interpreter)).code == 0
    for compiled in host.rglob("*.pyc"):
        if compiled.stem != "__init__":
            compiled.unlink()
    found = status(path=folders(interpreter))
    assert found.code == 1
    assert f"{host} has neither source nor bytecode (.pyc)" in found.daemon


def test_a_missing_library_of_the_hooks_is_told(interpreter):
    """The trigger needs nothing, the hooks need wrapt."""
    interpreter.install()
    (interpreter.site / "wrapt").unlink()
    found = status(path=folders(interpreter))
    assert found.code == 1
    assert "not found by this interpreter: wrapt" in found.daemon


def test_a_path_without_interpreter_and_backend_is_not_taken_for_good(tmp_path):
    """Nothing can be said, and nothing good is."""
    found = status(path=[tmp_path])
    assert found.code == 1
    assert "PATH has no python3 and mindieservice_daemon was not found" in found.daemon
    assert "PATH has no mindie_llm_backend" in found.worker


def test_a_script_in_place_of_python3_is_not_run(good, tmp_path):
    """An embedded Python looks at where it lies, a shell would follow it: two different interpreters."""
    shim = tmp_path / "shims" / "python3"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\ntouch {tmp_path}/ran\nexec {good.python} "$@"\n')
    shim.chmod(0o755)
    found = status(path=[shim.parent, good.bin, SYSTEM_PATH])
    assert found.code == 1
    assert f"{shim} is a script, which an embedded Python does not run" in found.daemon
    assert not (tmp_path / "ran").exists()


def test_a_backend_that_is_no_python_script_is_not_guessed(good):
    """A launcher of somebody's own; the interpreter it starts can be named."""
    good.add_backend("#!/bin/bash")
    found = status(path=folders(good))
    assert found.code == 1
    assert "names no Python" in found.worker
    assert status("--worker", good.python, path=folders(good)).code == 0


def test_a_first_line_through_env_asks_path(good, tmp_path):
    """``#!/usr/bin/env python3`` is whatever PATH says."""
    script = good.add_backend("#!/usr/bin/env python3")
    assert status(path=folders(good)).code == 0
    other = Interpreter(tmp_path / "other").add_host()
    found = status("--worker", script, path=[other.bin, SYSTEM_PATH])
    assert f"not installed for this interpreter ({other.folder})" in found.worker


def test_the_shells_detour_to_a_long_path_is_followed(good):
    """What pip writes where the kernel takes no path that long."""
    good.add_backend(f"#!/bin/sh\n'''exec' \"{good.python}\" \"$0\" \"$@\"\n' '''")
    found = status(path=folders(good))
    assert found.code == 0, found.text


def test_a_first_line_that_leads_nowhere_is_told(good):
    """The environment was moved or removed."""
    good.add_backend("#!/nowhere/bin/python3")
    found = status(path=folders(good))
    assert found.code == 1
    assert "names /nowhere/bin/python3, which" in found.worker


def test_an_interpreter_that_cannot_start_is_told_with_its_words(good):
    """PYTHONHOME leads nowhere."""
    found = status(path=folders(good), PYTHONHOME="/nowhere")
    assert found.code == 1
    assert "did not answer" in found.daemon
    assert "Traceback" not in found.text


def test_what_else_an_interpreter_prints_at_start_does_no_harm(good):
    """Somebody's sitecustomize talks."""
    (good.site / "sitecustomize.py").write_text("print('hello'); import sys; print('there', file=sys.stderr)\n")
    assert status(path=folders(good)).code == 0


def test_the_folder_of_the_script_is_the_workers_alone(good):
    """Python puts it on sys.path; the embedded interpreter has none."""
    (good.site / "mindie_llm").rename(good.bin / "mindie_llm")
    found = status(path=folders(good))
    assert found.code == 1
    assert "finds no mindie_llm" in found.daemon
    assert "STAYS OUT" not in found.worker


NOBODY = 65534


@pytest.fixture
def open_to_all():
    """A folder that other users may enter, unlike tmp_path."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def for_all(open_to_all):
    """A good installation that every user can run."""
    if os.getuid() != 0:
        pytest.skip("only root can ask as another user")
    python = f"/usr/bin/python3.{sys.version_info.minor}"
    found = Interpreter(open_to_all / "env", python if os.path.exists(python) else None)
    command = [found.python, "-c", "import numpy, wrapt"]
    if not can_run(command):
        pytest.skip("the interpreter and its libraries lie where other users cannot read")
    found.add_host(copied=True).install(copied=True).add_backend()
    return found


def can_run(command):
    try:
        return subprocess.run(command, user=NOBODY, group=NOBODY, extra_groups=[], check=False, cwd="/").returncode == 0
    except PermissionError:
        return False


def hide(package):
    """As an installation under umask 077 leaves it."""
    for path in [package, *package.rglob("*")]:
        path.chmod(path.stat().st_mode & ~(stat.S_IRWXG | stat.S_IRWXO))


@pytest.mark.parametrize("what", ["package", ".pth"])
def test_files_that_the_services_user_cannot_read_are_found(for_all, what):
    """umask 077: root sees a good installation, the service's user sees none."""
    assert status("--user", "nobody", path=folders(for_all)).code == 0
    pth = for_all.site / "mindie_kvpool_plugin.pth"
    hide(for_all.site / PACKAGE.name if what == "package" else pth)
    as_root = status(path=folders(for_all))
    assert as_root.code == 0
    assert "note: root may read" in as_root.daemon
    assert "ask with --user" in as_root.worker
    said = status("--user", "nobody", path=folders(for_all))
    assert said.code == 1
    hidden = for_all.site / PACKAGE.name if what == "package" else pth
    assert f"this user may not read {hidden}" in said.daemon
    assert f"this user may not read {hidden}" in said.worker
    assert "asked as user nobody" in said.text


def test_files_that_cannot_be_read_are_passed_over_in_silence(for_all):
    """Every Python of that user starts as without us."""
    (for_all.site / PACKAGE.name / "host" / "activate.py").chmod(0o600)
    command = [for_all.python, "-c", "pass"]
    started = subprocess.run(command, user=NOBODY, group=NOBODY, extra_groups=[], check=True, capture_output=True)
    assert started.stderr == b""
    said = status("--user", "nobody", path=folders(for_all))
    assert "this user may not read" in said.daemon


def test_a_single_file_that_cannot_be_read_is_found(for_all):
    """It is imported later than at start: the worker would end there."""
    late = for_all.site / PACKAGE.name / "core" / "reload.py"
    late.chmod(0o600)
    said = status("--user", "nobody", path=folders(for_all))
    assert said.code == 1
    assert f"this user may not read {late}" in said.daemon


def test_root_asks_as_the_owner_of_the_backend(for_all):
    """Unless told otherwise, that is who the service runs as."""
    os.chown(for_all.bin / "mindie_llm_backend", NOBODY, NOBODY)
    hide(for_all.site / PACKAGE.name)
    said = status(path=folders(for_all))
    assert said.code == 1
    assert "asked as user nobody" in said.text
    assert status("--user", "root", path=folders(for_all)).code == 0


def test_programs_that_the_user_may_not_run_are_passed_over(for_all, open_to_all):
    """PATH is searched with that user's rights, too."""
    private = Interpreter(open_to_all / "private")
    private.folder.chmod(0o700)
    said = status("--user", "nobody", path=[private.bin, for_all.bin, SYSTEM_PATH])
    assert said.code == 0, said.text
    assert os.geteuid() == 0


def test_a_user_who_does_not_exist_is_refused():
    """A usage error."""
    found = status("--user", "no-such-user", path=[SYSTEM_PATH])
    assert found.code == 2
    assert "there is no user no-such-user" in found.text
