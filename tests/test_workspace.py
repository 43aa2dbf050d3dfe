from __future__ import annotations

import os
import threading
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.errors import ConfigError, ToolError
from orchestrator.events import ArtifactStored
from orchestrator.workspace import Workspace
from orchestrator.workspace.files import read_regular, remove, replace
from orchestrator.workspace.loop import LoopWorkspace

HERE = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


class Room:
    """A workspace whose path has a space and Chinese in it, and the events of its loops."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "我的 项目"
        self.workspace = Workspace(self.folder / "ws", self.folder / "home")
        self.events: list[ArtifactStored] = []

    @property
    def root(self) -> Path:
        return self.workspace.root

    def loop(self, path: str = "ori/a", takes: tuple[str, ...] = ()) -> LoopWorkspace:
        return self.workspace.for_loop(path, lambda owner: owner in takes, self.events.append)

    def there(self, name: str, text: str = "old") -> Path:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    def of(self, path: str) -> list[ArtifactStored]:
        return [event for event in self.events if event.path == path]


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


def test_a_run_that_touches_no_file_creates_nothing(room: Room) -> None:
    room.loop()
    assert room.workspace.listing() == ""
    assert room.workspace.changes.artifacts() == ()
    with pytest.raises(ToolError, match="it is empty"):
        room.loop().read("a.txt")
    assert not room.folder.exists()


def test_a_space_and_chinese_in_the_path_make_no_difference(room: Room) -> None:
    """B31: a workspace with a space in its path works for every file operation."""
    files = room.loop()
    artifact = files.write("报 告/总 结.md", "区域".encode())
    assert (artifact.path, artifact.size, artifact.media_type, artifact.by) == (
        "报 告/总 结.md",
        6,
        "text/markdown",
        "ori/a",
    )
    assert files.read("报 告/总 结.md").decode() == "区域"
    assert [f.path for f in files.list("报 告")] == ["报 告/总 结.md"]
    files.delete("报 告/总 结.md")
    assert files.list() == []


class TestPaths:
    @pytest.mark.parametrize("name", ["a.txt", "./a.txt", "x/../a.txt", "/workspace/a.txt", "{root}/a.txt"])
    def test_ways_to_name_a_file(self, room: Room, name: str) -> None:
        (room.root / "x").mkdir(parents=True)
        file = room.there("a.txt")
        assert room.loop().resolve(name.format(root=room.root)) == file
        assert room.loop().relative(file) == "a.txt"

    @pytest.mark.parametrize(
        "name",
        ["../home/x", "a/../../x", "/etc/passwd", "{root}-evil/x", "../ws-evil/x", "{root}/../x", "/workspace/../x"],
    )
    def test_nothing_outside_the_workspace_can_be_reached(self, room: Room, name: str) -> None:
        """B51: neither `..` nor a sibling whose path begins with the same letters."""
        evil = room.folder / "ws-evil"
        evil.mkdir(parents=True)
        (evil / "x").write_text("secret")
        (room.folder / "x").write_text("secret")
        name = name.format(root=room.root)
        for attempt in (room.loop().resolve, room.loop().read, room.loop().list, room.loop().delete):
            with pytest.raises(ToolError, match="the workspace; paths are relative to the workspace, as"):
                attempt(name)
        with pytest.raises(ToolError, match="the workspace"):
            room.loop().write(name, b"evil")
        assert (evil / "x").read_text() == "secret"

    @pytest.mark.parametrize("name", ["", "  ", "a\0b", "a\ud800b"])
    def test_what_is_no_path_is_refused(self, room: Room, name: str) -> None:
        with pytest.raises(ToolError, match=r"the path is empty|is no path"):
            room.loop().write(name, b"")

    def test_a_name_that_is_too_long_is_an_error_in_words(self, room: Room) -> None:
        room.root.mkdir(parents=True)
        for attempt in (room.loop().read, room.loop().resolve, lambda name: room.loop().write(name, b"")):
            with pytest.raises(ToolError, match="name too long"):
                attempt("x" * 300 + ".txt")

    def test_links_that_lead_out_are_refused_and_not_listed(self, room: Room) -> None:
        """B51: also through a symlink, to a file or to a folder."""
        outside = room.folder / "outside"
        outside.mkdir(parents=True)
        (outside / "secret.txt").write_text("secret")
        room.there("a.txt")
        (room.root / "link.txt").symlink_to(outside / "secret.txt")
        (room.root / "folder").symlink_to(outside)
        for name in ("link.txt", "folder/secret.txt"):
            with pytest.raises(ToolError, match="leads out of the workspace"):
                room.loop().read(name)
            with pytest.raises(ToolError, match="leads out of the workspace"):
                room.loop().write(name, b"evil")
        assert [f.path for f in room.loop().list()] == ["a.txt"]
        assert (outside / "secret.txt").read_text() == "secret"

    def test_links_inside_the_workspace_work_and_belong_to_the_file_they_lead_to(self, room: Room) -> None:
        room.loop("ori/a").write("a.txt", b"1")
        (room.root / "link.txt").symlink_to("a.txt")
        assert room.loop("ori/a").read("link.txt") == b"1"
        with pytest.raises(ToolError, match=r"'a\.txt' was written by ori/a"):
            room.loop("ori/b").write("link.txt", b"2")

    def test_a_circle_of_links_is_an_error_in_words(self, room: Room) -> None:
        room.root.mkdir(parents=True)
        (room.root / "a").symlink_to("b")
        (room.root / "b").symlink_to("a")
        with pytest.raises(ToolError):
            room.loop().read("a")

    def test_a_link_put_in_place_after_the_check_is_not_followed(self, room: Room) -> None:
        from orchestrator.workspace.files import read_regular

        room.there("a.txt")
        (room.root / "b.txt").symlink_to("a.txt")
        with pytest.raises(ToolError, match="cannot read"):
            read_regular(room.root / "b.txt", "b.txt")

    def test_a_pipe_is_refused_at_once(self, room: Room) -> None:
        room.root.mkdir(parents=True)
        os.mkfifo(room.root / "pipe")
        with pytest.raises(ToolError, match="no regular file"):
            room.loop().read("pipe")

    def test_a_folder_is_no_file(self, room: Room) -> None:
        room.there("data/a.txt")
        with pytest.raises(ToolError, match="'data' is a folder"):
            room.loop().read("data")
        with pytest.raises(ToolError, match="'data' is a folder"):
            room.loop().write("data", b"")
        with pytest.raises(ToolError, match=r"cannot write 'data/a\.txt/b'"):
            room.loop().write("data/a.txt/b", b"")

    @pytest.mark.parametrize(
        ("name", "fault"), [("目录/", "is a folder"), ("a\nb.md", "control character")], ids=["folder", "newline"]
    )
    def test_a_name_that_no_file_should_get_is_refused(self, room: Room, name: str, fault: str) -> None:
        with pytest.raises(ToolError, match=fault):
            room.loop().write(name, b"")

    def test_a_missing_file_is_told_with_the_nearest_one(self, room: Room) -> None:
        room.there("data/2026/sales.csv")
        room.there("notes.txt")
        with pytest.raises(ToolError, match=r"no 'sales\.csv' in the workspace; did you mean 'data/2026/sales\.csv'\?"):
            room.loop().read("sales.csv")
        with pytest.raises(ToolError, match=r"did you mean 'notes\.txt'\?"):
            room.loop().read("note.txt")

    def test_composed_and_decomposed_names_are_the_same_file(self, room: Room) -> None:
        room.there(unicodedata.normalize("NFD", "café.txt"), "stored decomposed")
        composed = unicodedata.normalize("NFC", "café.txt")
        assert room.loop().read(composed) == b"stored decomposed"
        room.loop().write(composed, b"new")
        assert len(room.loop().list()) == 1

    def test_full_width_forms_are_found_for_reading_but_never_overwritten(self, room: Room) -> None:
        room.there("报告（终）.md", "full width")
        assert room.loop().read("报告(终).md").decode() == "full width"
        room.loop().write("报告(终).md", b"half width")
        assert room.loop().read("报告（终）.md").decode() == "full width"
        assert room.loop().read("报告(终).md").decode() == "half width"

    def test_the_engines_own_folder_is_out_of_reach(self, room: Room) -> None:
        room.there(".ori/runs.db")
        with pytest.raises(ToolError, match="belongs to the engine"):
            room.loop().read(".ori/runs.db")
        assert room.loop().list() == []

    @given(
        st.lists(st.sampled_from(["..", ".", "a", "ws", "ws-evil", "/", "~", "%2e%2e", "\\", "link", ""]), max_size=6)
    )
    @settings(suppress_health_check=HERE, max_examples=60)
    def test_whatever_the_name_is_it_stays_inside(self, room: Room, parts: list[str]) -> None:
        room.root.mkdir(parents=True, exist_ok=True)
        if not (room.root / "link").is_symlink():
            (room.root / "link").symlink_to("..")
        try:
            path = room.loop().resolve("/".join(parts))
        except ToolError:
            return
        assert Path(os.path.realpath(path)).is_relative_to(room.root)


class TestOwners:
    def test_a_loop_overwrites_its_own_files(self, room: Room) -> None:
        files = room.loop()
        files.write("a.md", b"1")
        files.write("a.md", b"2")
        assert files.read("a.md") == b"2"
        assert [(e.file, e.created, e.before) for e in room.events] == [("a.md", True, None), ("a.md", False, None)]

    def test_another_loops_file_is_refused_with_its_owner_and_the_next_move(self, room: Room) -> None:
        room.loop("ori/a").write("a.md", b"1")
        for attempt in (lambda: room.loop("ori/b").write("a.md", b"2"), lambda: room.loop("ori/b").delete("a.md")):
            with pytest.raises(ToolError, match=r"'a\.md' was written by ori/a .*choose another name"):
                attempt()
        assert room.loop("ori/b").read("a.md") == b"1"

    def test_a_file_of_an_ended_need_can_be_taken_over(self, room: Room) -> None:
        room.loop("ori/a").write("a.md", b"1")
        room.loop("ori/b", takes=("ori/a",)).write("a.md", b"2")
        assert [artifact.by for artifact in room.workspace.changes.artifacts()] == ["ori/b"]
        with pytest.raises(ToolError, match="written by ori/b"):
            room.loop("ori/a").write("a.md", b"3")

    def test_a_deleted_file_belongs_to_nobody(self, room: Room) -> None:
        room.loop("ori/a").write("a.md", b"1")
        room.loop("ori/a").delete("a.md")
        room.loop("ori/b").write("a.md", b"2")
        assert room.workspace.changes.artifacts()[0].by == "ori/b"

    def test_of_two_loops_that_write_the_same_file_at_once_one_wins(self, room: Room) -> None:
        barrier = threading.Barrier(8)

        def attempt(number: int) -> bool:
            files = room.loop(f"ori/{number}")
            barrier.wait()
            try:
                files.write("a.md", str(number).encode())
            except ToolError:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            won = [number for number, ok in enumerate(pool.map(attempt, range(8))) if ok]
        assert len(won) == 1
        assert room.loop().read("a.md") == str(won[0]).encode()

    def test_a_reader_never_sees_half_a_file(self, room: Room) -> None:
        files, whole = room.loop(), [b"a" * 300_000, b"b" * 300_000]
        files.write("a.bin", whole[0])
        done = threading.Event()

        def write() -> None:
            for number in range(40):
                files.write("a.bin", whole[number % 2])
            done.set()

        writer = threading.Thread(target=write)
        writer.start()
        seen = [files.read("a.bin")]
        while not done.is_set():
            seen.append(files.read("a.bin"))
        writer.join()
        assert set(seen) <= set(whole)
        assert [f.path for f in files.list()] == ["a.bin"]
        assert list(room.root.iterdir()) == [room.root / "a.bin"]

    def test_the_mode_of_a_file_stays(self, room: Room) -> None:
        file = room.there("run.sh")
        file.chmod(0o750)
        room.loop().write("run.sh", b"new")
        assert file.stat().st_mode & 0o777 == 0o750


class TestInputs:
    @pytest.fixture
    def base(self, tmp_path: Path) -> Path:
        base = tmp_path / "scenario"
        for name in ("data/sales.csv", "docs/a.txt", "docs/deep/b.txt"):
            (base / name).parent.mkdir(parents=True, exist_ok=True)
            (base / name).write_text(name)
        (tmp_path / "elsewhere.csv").write_text("x")
        return base

    def test_inputs_go_to_the_top_by_their_name(self, room: Room, base: Path) -> None:
        room.workspace.copy_inputs(["data/sales.csv", base.parent / "elsewhere.csv", "docs"], base)
        assert [f.path for f in room.workspace.files()] == [
            "docs/a.txt", "docs/deep/b.txt", "elsewhere.csv", "sales.csv",
        ]  # fmt: skip
        assert room.workspace.changes.artifacts() == ()

    def test_inputs_are_read_only_unless_they_are_targets(self, room: Room, base: Path) -> None:
        room.workspace.copy_inputs(["data/sales.csv", "docs"], base, targets={"sales.csv"})
        room.loop().write("sales.csv", b"new")
        for attempt in (
            lambda: room.loop().write("docs/deep/b.txt", b""),
            lambda: room.loop().delete("docs/deep/b.txt"),
        ):
            with pytest.raises(
                ToolError, match=r"'docs/deep/b\.txt' is an input of the run and read-only; choose another"
            ):
                attempt()
        room.loop().write("docs/new.txt", b"")
        assert (base / "data/sales.csv").read_text() == "data/sales.csv"

    def test_a_missing_input_is_told_with_the_nearest_one(self, room: Room, base: Path) -> None:
        with pytest.raises(ConfigError, match=r"'data/sale\.csv' does not exist; did you mean 'sales\.csv'\?"):
            room.workspace.copy_inputs(["data/sale.csv"], base)
        (base / "data/.hidden").write_text("")
        with pytest.raises(ConfigError, match=r"does not exist; allowed: (?!.*hidden)"):
            room.workspace.copy_inputs(["data/nothing-alike"], base)

    def test_two_inputs_of_the_same_name_are_refused(self, room: Room, base: Path) -> None:
        (base / "docs/deep/a.txt").write_text("another")
        with pytest.raises(ConfigError, match=r"both go to 'a\.txt'"):
            room.workspace.copy_inputs(["docs/a.txt", "docs/deep/a.txt"], base)

    def test_inputs_that_are_in_the_workspace_already_stay(self, tmp_path: Path, base: Path) -> None:
        workspace = Workspace(base, tmp_path / "home")
        workspace.copy_inputs(["data/sales.csv"], base)
        with pytest.raises(ToolError, match="read-only"):
            workspace.for_loop("ori", lambda owner: True, lambda event: None).write("data/sales.csv", b"")

    def test_links_inside_an_input_folder_do_not_pull_in_what_lies_outside(self, room: Room, base: Path) -> None:
        (base / "docs/link.txt").symlink_to(base.parent / "elsewhere.csv")
        room.workspace.copy_inputs(["docs"], base)
        with pytest.raises(ToolError, match="leads out"):
            room.loop().read("docs/link.txt")


class TestUndo:
    def test_what_a_run_changed_is_put_back(self, room: Room) -> None:
        room.there("old.txt", "before")
        room.there("gone.txt", "kept")
        files = room.loop()
        files.write("old.txt", b"1")
        files.write("old.txt", b"2")
        files.write("new.txt", b"3")
        files.delete("gone.txt")
        undone = Workspace(room.root, room.workspace.home).changes.undo(room.events)
        assert (undone.restored, undone.deleted, undone.left) == (["old.txt", "gone.txt"], ["new.txt"], [])
        assert (room.root / "old.txt").read_text() == "before"
        assert (room.root / "gone.txt").read_text() == "kept"
        assert not (room.root / "new.txt").exists()

    def test_undoing_a_subtask_brings_back_what_an_earlier_one_wrote(self, room: Room) -> None:
        room.loop("ori/a").write("report.md", b"of a")
        room.loop("ori/b", takes=("ori/a",)).write("report.md", b"of b")
        room.workspace.changes.undo(room.of("ori/b"))
        assert room.loop().read("report.md") == b"of a"
        assert [(a.by, a.size) for a in room.workspace.changes.artifacts()] == [("ori/a", 4)]
        room.workspace.changes.undo(room.of("ori/a"))
        assert room.workspace.changes.artifacts() == ()
        assert room.loop().list() == []

    def test_a_file_that_somebody_else_changed_since_is_left_unless_forced(self, room: Room) -> None:
        room.there("a.txt", "before")
        room.loop().write("a.txt", b"run")
        room.there("a.txt", "user")
        undone = room.workspace.changes.undo(room.events)
        assert undone.left == ["a.txt: it was changed since"]
        assert (room.root / "a.txt").read_text() == "user"
        assert room.workspace.changes.undo(room.events, force=True).restored == ["a.txt"]
        assert (root := room.root / "a.txt").read_text() == "before", root

    def test_what_a_user_changed_in_between_is_kept_too(self, room: Room) -> None:
        room.loop().write("a.txt", b"run")
        room.there("a.txt", "user")
        room.loop().write("a.txt", b"run again")
        kept = {file.read_text() for file in (room.workspace.home / "kept").iterdir()}
        assert kept == {"user"}

    def test_undoing_twice_changes_nothing_more(self, room: Room) -> None:
        room.there("a.txt", "before")
        room.loop().write("a.txt", b"run")
        room.loop().write("b.txt", b"run")
        room.workspace.changes.undo(room.events)
        undone = room.workspace.changes.undo(room.events)
        assert (undone.restored, undone.deleted, undone.left) == ([], [], [])

    def test_lost_old_content_is_told(self, room: Room) -> None:
        room.there("a.txt", "before")
        room.loop().write("a.txt", b"run")
        for file in (room.workspace.home / "kept").iterdir():
            file.unlink()
        assert room.workspace.changes.undo(room.events).left == ["a.txt: its old content was not kept"]

    def test_a_link_or_a_folder_in_a_files_place_is_left_and_the_other_files_are_put_back(self, room: Room) -> None:
        for name in ("a.txt", "b.txt", "c.txt"):
            room.loop().write(name, b"run")
        (room.root / "a.txt").unlink()
        (room.root / "a.txt").symlink_to("/etc/passwd")
        (room.root / "b.txt").unlink()
        (room.root / "b.txt").mkdir()
        undone = room.workspace.changes.undo(room.events, force=True)
        assert ([left.partition(":")[0] for left in undone.left], undone.deleted) == (["a.txt", "b.txt"], ["c.txt"])


class TestOutputs:
    @pytest.mark.parametrize("key", ["ori/collect:3:tool.0", "ori/收集~2/@review1:3:tool.0", "a" * 400, "..", ""])
    def test_a_cut_text_is_read_back_by_its_handle(self, room: Room, key: str) -> None:
        handle = room.workspace.outputs.store(key, "the whole\ntext 全文")
        assert handle == f"out:{key}"
        assert room.loop().read_text(handle) == "the whole\ntext 全文"
        assert all(file.parent == room.workspace.home / "outputs" for file in room.workspace.home.rglob("*.txt"))

    def test_what_strangers_wrote_stays_marked_when_the_run_goes_on_in_another_process(self, room: Room) -> None:
        for key, sources in (("a", ("https://a.example/x",)), ("b", ()), ("c", ("https://c.example",)), ("c", ())):
            room.workspace.outputs.store(key, "text", sources)
        later = Workspace(room.workspace.root, room.workspace.home)
        assert [later.sources(f"out:{key}") for key in "abc"] == [("https://a.example/x",), (), ()]
        assert later.sources() == ("https://a.example/x",)

    def test_a_wrong_handle_is_told_with_the_nearest_one(self, room: Room) -> None:
        with pytest.raises(ToolError, match="nothing was cut so far"):
            room.workspace.outputs.read("out:x")
        room.workspace.outputs.store("ori/collect:3:tool.0", "x")
        with pytest.raises(ToolError, match=r"did you mean 'out:ori/collect:3:tool\.0'\?"):
            room.workspace.outputs.read("out:ori/collect:3:tool.1")
        with pytest.raises(ToolError, match="no output"):
            room.workspace.outputs.read("ori/collect:3:tool.0")

    @given(st.lists(st.text(st.sampled_from("a/:~@.%=2F收"), max_size=12), min_size=2, max_size=8, unique=True))
    @settings(suppress_health_check=HERE, max_examples=40)
    def test_no_two_keys_share_a_file(self, room: Room, keys: list[str]) -> None:
        for key in keys:
            room.workspace.outputs.store(key, key)
        assert [room.workspace.outputs.read(f"out:{key}") for key in keys] == keys


def test_the_listing_names_the_first_files_and_how_many_more_there_are(room: Room) -> None:
    for number in range(60):
        room.there(f"data/{number:02}.txt", "x" * 1500)
    room.there(".hidden/x")
    lines = room.workspace.listing(limit=50).split("\n")
    assert lines[0] == "data/00.txt (1.5 kB)"
    assert (len(lines), lines[-1]) == (51, "… and 10 more")


@pytest.mark.parametrize(
    ("folder", "pattern", "found"),
    [
        (".", "*", ["a.txt", "data/b.csv", "data/deep/c.csv"]),
        (".", "*.csv", ["data/b.csv", "data/deep/c.csv"]),
        (".", "**/*.txt", ["a.txt"]),
        (".", "data/**/*.csv", ["data/b.csv", "data/deep/c.csv"]),
        ("data", "*", ["data/b.csv", "data/deep/c.csv"]),
        ("data", "deep/*", ["data/deep/c.csv"]),
        ("a.txt", "*", ["a.txt"]),
    ],
)
def test_files_are_listed_by_folder_and_pattern(room: Room, folder: str, pattern: str, found: list[str]) -> None:
    for name in ("a.txt", "data/b.csv", "data/deep/c.csv"):
        room.there(name)
    assert [file.path for file in room.loop().list(folder, pattern)] == found


def test_a_link_put_on_the_way_after_a_path_was_looked_at_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f.txt").write_text("secret")
    (tmp_path / "ws" / "d").mkdir(parents=True)
    path = Workspace(tmp_path / "ws", tmp_path / "home").locate("d/f.txt")
    (tmp_path / "ws" / "d").rmdir()
    (tmp_path / "ws" / "d").symlink_to(tmp_path / "outside")  # as a program at work in the sandbox can do at any time
    for attempt in (lambda: replace(path, b"x"), lambda: remove(path), lambda: read_regular(path, "d/f.txt")):
        with pytest.raises((OSError, ToolError), match=r"(?i)not a directory"):
            attempt()
    assert (tmp_path / "outside" / "f.txt").read_text() == "secret"


def test_files_that_come_and_go_while_they_are_listed_are_no_error(room: Room) -> None:
    kept, over = room.there("d/kept.txt"), threading.Event()
    coming = [room.root / f"d/{number}.txt" for number in range(20)]

    def come_and_go() -> None:
        while not over.is_set():
            for file in coming:
                file.write_text("x")
            for file in coming:
                file.unlink()

    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(come_and_go)
        listings = [room.loop().list("d") for _ in range(300)]
        over.set()
        going.result()
    assert all(kept.name in [Path(info.path).name for info in listing] for listing in listings)
