"""Files that are always whole, whatever ends the writing."""

import multiprocessing
import os
import resource
import signal
import zipfile
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch as th

from seeupo_gym import SeeUPO
from seeupo_gym.system import files
from seeupo_gym.system.files import open_atomically, replace_files, write_atomically

TRAP = "seeupo_gym/CoordinationTrap-v0"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_old_content_stays_until_the_new_one_is_whole(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "table.csv"
    write_atomically(path, "old")
    replace = os.replace

    def check(source, target):
        assert Path(source).read_text() == "new"
        assert Path(source).parent == Path(target).parent, "on one file system"
        assert Path(target).read_text() == "old"
        replace(source, target)

    monkeypatch.setattr(files.os, "replace", check)
    write_atomically(path, "new")
    assert path.read_text() == "new"
    assert names(path.parent) == ["table.csv"]


@pytest.mark.parametrize("error", [OSError("the disk is gone"), KeyboardInterrupt()])
def test_an_exception_leaves_the_old_file(tmp_path, error):
    path = tmp_path / "file"
    write_atomically(path, "old")

    def write():
        with open_atomically(path) as file:
            file.write(b"ne")
            raise error

    with pytest.raises(type(error)):
        write()
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


@contextmanager
def _full_disk(n_bytes):
    """No file can have more than some bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("n_bytes", [0, 100, 8_000, 25_000])
def test_a_model_survives_a_full_disk(tmp_path, n_bytes):
    model = SeeUPO("MlpPolicy", TRAP, n_groups=2, group_size=2, seed=0).learn(16)
    model.save(tmp_path / "model")
    before = (tmp_path / "model.zip").read_bytes()
    assert len(before) > n_bytes
    model.learn(16, reset_num_timesteps=False)
    with (
        _full_disk(n_bytes),
        pytest.raises(OSError, match=r"model\.zip: .*; what was there before is unchanged"),
    ):
        model.save(tmp_path / "model")
    assert (tmp_path / "model.zip").read_bytes() == before
    assert names(tmp_path) == ["model.zip"]
    assert SeeUPO.load(tmp_path / "model").num_timesteps == 16


def test_names_of_saved_models_are_those_of_sb3(tmp_path):
    model = SeeUPO("MlpPolicy", TRAP, n_groups=2, group_size=2)
    (tmp_path / "folder.zip").mkdir()
    with pytest.warns(UserWarning, match=r"is a folder. Will save instead to .*folder\.zip_2"):
        model.save(str(tmp_path / "folder"))
    model.save(tmp_path / "new" / "plain")
    model.save(tmp_path / "with.suffix")
    assert names(tmp_path) == ["folder.zip", "folder.zip_2", "new", "with.suffix"]
    assert names(tmp_path / "new") == ["plain.zip"]
    for name in ("folder.zip_2", "new/plain", "with.suffix"):
        SeeUPO.load(tmp_path / name)


def test_links_permissions_and_devices_stay_what_they_are(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    write_atomically(real, "old")
    real.chmod(0o640)
    link.symlink_to(real)
    write_atomically(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert real.stat().st_mode & 0o777 == 0o640
    write_atomically("/dev/null", "nothing")
    assert not Path("/dev/null").is_file()
    with pytest.raises(OSError, match="directory"):
        write_atomically(tmp_path, "text")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_file_that_is_read_only_is_not_replaced(tmp_path):
    write_atomically(tmp_path / "file", "old")
    (tmp_path / "file").chmod(0o444)
    with pytest.raises(PermissionError, match="the file is read-only"):
        write_atomically(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "old"


def _write_for_ever(path, started):
    with open_atomically(path) as file:
        file.write(b"a part")
        file.flush()
        started.set()
        signal.pause()


def test_what_a_killed_process_left_is_removed_by_the_next_one(tmp_path):
    context = multiprocessing.get_context("fork")
    started = [context.Event() for _ in range(2)]
    processes = [context.Process(target=_write_for_ever, args=(tmp_path / "file", event)) for event in started]
    for process, event in zip(processes, started, strict=True):
        process.start()
        event.wait()
    assert len(names(tmp_path)) == 2
    processes[0].kill()
    processes[0].join()
    assert len(names(tmp_path)) == 2
    write_atomically(tmp_path / "other", "text")
    assert len(names(tmp_path)) == 2, "the file of the process that is alive stays"
    processes[1].kill()
    processes[1].join()
    write_atomically(tmp_path / "other", "text")
    assert names(tmp_path) == ["other"]


def test_the_files_of_a_folder_are_replaced_when_all_are_whole(tmp_path):
    write_atomically(tmp_path / "a", "old a")
    write_atomically(tmp_path / "stays", "as it is")

    def write():
        with replace_files(tmp_path) as folder:
            (folder / "a").write_text("new a")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert (tmp_path / "a").read_text() == "old a"
    with replace_files(tmp_path) as folder:
        (folder / "a").write_text("new a")
        (folder / "below").mkdir()
        (folder / "below" / "b").write_text("new b")
        assert (tmp_path / "a").read_text() == "old a"
    assert names(tmp_path) == ["a", "below", "stays"]
    assert (tmp_path / "a").read_text() == "new a"
    assert (tmp_path / "below" / "b").read_text() == "new b"


def test_a_file_like_object_is_written_as_it_is(tmp_path):
    model = SeeUPO("MlpPolicy", TRAP, n_groups=2, group_size=2)
    with (tmp_path / "model").open("wb") as file:
        model.save(file)
    loaded = SeeUPO.load(tmp_path / "model")
    for a, b in zip(model.policy.parameters(), loaded.policy.parameters(), strict=True):
        assert th.equal(a, b)


@pytest.mark.parametrize("n_writes", [1, 5, 20, 60])
def test_an_interrupt_of_a_save_is_an_interrupt(tmp_path, monkeypatch, n_writes):
    """Torch, which has to finish its archive, makes an error of its own of it."""
    model = SeeUPO("MlpPolicy", TRAP, n_groups=2, group_size=2, seed=0)
    model.save(tmp_path / "model")
    before = (tmp_path / "model.zip").read_bytes()
    write, calls = zipfile._ZipWriteFile.write, []

    def interrupt(*arguments):
        calls.append(arguments)
        if len(calls) == n_writes:
            raise KeyboardInterrupt
        return write(*arguments)

    monkeypatch.setattr("zipfile._ZipWriteFile.write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.save(tmp_path / "model")
    assert (tmp_path / "model.zip").read_bytes() == before
    assert names(tmp_path) == ["model.zip"]


def test_a_save_that_fails_after_an_interrupt_says_why(tmp_path):
    model = SeeUPO("MlpPolicy", TRAP, n_groups=2, group_size=2, seed=0)

    def save():
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            with _full_disk(8_000):
                model.save(tmp_path / "model")

    with pytest.raises(OSError, match=r"cannot write .*model\.zip"):
        save()
