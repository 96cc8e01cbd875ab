from __future__ import annotations

import threading
from pathlib import Path

import pytest
import yaml

from loadgen.core.errors import ConfigError
from loadgen.kube import kubeconfigfile


def config(path: Path, *names: str, current: str = "") -> Path:
    content = {kind: [{"name": name, kind[:-1]: {}} for name in names] for kind in ("clusters", "contexts", "users")}
    path.write_text(yaml.safe_dump({**content, "current-context": current, "extensions": [{"name": "theirs"}]}))
    return path


def names(path: Path) -> list[str]:
    found = yaml.safe_load(path.read_text())
    lists = [[entry["name"] for entry in found[kind]] for kind in ("clusters", "contexts", "users")]
    assert lists[0] == lists[1] == lists[2]
    return lists[0]


def current(path: Path) -> str:
    return yaml.safe_load(path.read_text()).get("current-context", "")


def written(path: Path) -> tuple[int, int, int]:
    """What changes with each writing, by whatever way; reading changes the time of the last access."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns


@pytest.mark.parametrize(("switch", "then"), [(False, "mine"), (True, "kind-x")])
def test_new_entries_come_in_and_the_current_context_stays_unless_asked(
    tmp_path: Path, switch: bool, then: str
) -> None:
    new = config(tmp_path / "new", "kind-x", current="kind-x")
    target = config(tmp_path / "target", "mine", "kind-x", current="mine")
    kubeconfigfile.merge(new, target, switch_context=switch)
    assert names(target) == ["mine", "kind-x"]
    assert current(target) == then
    assert yaml.safe_load(target.read_text())["extensions"] == [{"name": "theirs"}]
    assert target.stat().st_mode & 0o077 == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "target"]


def test_a_first_kubeconfig_is_made_without_a_current_context(tmp_path: Path) -> None:
    new = config(tmp_path / "new", "kind-x", current="kind-x")
    target = tmp_path / "home" / ".kube" / "config"
    kubeconfigfile.merge(new, target, switch_context=False)
    assert (names(target), current(target)) == (["kind-x"], "")


def test_a_link_stays_one(tmp_path: Path) -> None:
    new = config(tmp_path / "new", "kind-x", current="kind-x")
    target = config(tmp_path / "target", "mine", current="mine")
    (tmp_path / "link").symlink_to(target)
    kubeconfigfile.merge(new, tmp_path / "link", switch_context=False)
    assert (tmp_path / "link").is_symlink()
    assert names(target) == ["mine", "kind-x"]


def test_what_goes_takes_its_own_entries_along_and_no_others(tmp_path: Path) -> None:
    one = config(tmp_path / "one", "mine", "kind-x", current="kind-x")
    two = config(tmp_path / "two", "other", current="other")
    before = written(two)
    kubeconfigfile.remove([one, two, tmp_path / "missing"], "kind-x")
    assert (names(one), current(one)) == (["mine"], "")
    assert written(two) == before
    assert not (tmp_path / "missing").exists()


def test_another_current_context_stays(tmp_path: Path) -> None:
    one = config(tmp_path / "one", "mine", "kind-x", current="mine")
    kubeconfigfile.remove([one], "kind-x")
    assert (names(one), current(one)) == (["mine"], "mine")


@pytest.mark.parametrize("text", ["- a list", "a: [", "contexts: [nameless]", "contexts: [{}]", "\x00"])
def test_a_file_that_is_no_kubeconfig_is_left_alone(tmp_path: Path, text: str) -> None:
    new = config(tmp_path / "new", "kind-x", current="kind-x")
    broken = tmp_path / "broken"
    broken.write_text(text)
    with pytest.raises(ConfigError, match="broken: not readable as a kubeconfig"):
        kubeconfigfile.merge(new, broken, switch_context=False)
    assert broken.read_text() == text
    assert not (tmp_path / "broken.lock").exists()


def test_another_programs_lock_is_waited_for(tmp_path: Path) -> None:
    new = config(tmp_path / "new", "kind-x", current="kind-x")
    target = config(tmp_path / "target", "mine", current="mine")
    lock = tmp_path / "target.lock"
    lock.touch()
    merging = threading.Thread(target=kubeconfigfile.merge, args=(new, target), kwargs={"switch_context": False})
    merging.start()
    assert names(target) == ["mine"]
    lock.unlink()
    merging.join()
    assert names(target) == ["mine", "kind-x"]
    assert not lock.exists()


def test_a_lock_that_stays_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubeconfigfile, "LOCK_LIMIT_S", 0.1)
    target = config(tmp_path / "target", "mine", current="mine")
    (tmp_path / "target.lock").touch()
    with pytest.raises(ConfigError, match=r"target: locked by target\.lock; if no other program"):
        kubeconfigfile.merge(target, target, switch_context=False)
    assert (tmp_path / "target.lock").exists()


def test_which_of_several_files_is_written_to(tmp_path: Path) -> None:
    missing, there, last = (str(tmp_path / name) for name in ("missing", "there", "last"))
    Path(there).touch()
    assert kubeconfigfile.for_new_entries(f"{missing}:{there}:{last}") == Path(there)
    assert kubeconfigfile.for_new_entries(f"{missing}::{last}") == Path(last)
    assert kubeconfigfile.files(f":{last}:{last}:") == (Path(last),)
