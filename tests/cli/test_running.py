"""Setting up and keeping house: init, verify, repair, collect, doctor, completion, keys, the pipeline."""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

import headwater
from headwater.cli import housekeeping, main
from headwater.cli.main import SCRIPTS, candidates
from headwater.rest.server import start_in_thread
from headwater.spark.java_runtime import found_java, wheel_runtime
from headwater.store import ObjectStore, PutMode, open_store
from tests.cli.running import Cli


def test_init_makes_a_catalog_of_a_kind_once(nowhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (nowhere / "work").mkdir()
    (nowhere / "work" / "notes.txt").write_text("mine")
    cli = Cli("./work", capfd)
    assert cli.json("init") == {"catalog": "./work", "kind": "metastore"}
    assert cli("init")[0] == 5
    assert cli.ok("ls") == ""
    other = Cli("./other", capfd)
    assert other.json("init", "--impl", "dir")["kind"] == "dir"
    assert other.ok("verify") == "The catalog is whole.\n"


def test_a_metastore_is_verified_repaired_and_collected(lake: Cli) -> None:
    assert lake.ok("verify") == "The catalog is whole.\n"
    assert lake.ok("verify", "--json") == ""
    assert lake.ok("repair") == "Nothing was missing.\n"
    assert lake.json("repair") == []
    lake.ok("drop", "prod.users", "--yes")
    for name in ("a", "b", "c"):
        lake.ok("create", name, "--namespace")
    assert "boundary" in lake.json("collect", "--keep-days", "0", "--dry-run")
    assert lake.json("collect", "--keep-slots", "1", "--yes")["boundary"] > 0
    assert lake("undrop", "prod.users")[0] == 3
    assert lake("collect", "--keep-slots", "1", "--keep-days", "1", "--yes")[0] == 5


def test_a_damaged_metastore_is_told_by_verify(lake: Cli) -> None:
    table = headwater.Catalog(lake.root)["prod.users"].dataset().uri
    shutil.rmtree(table.removeprefix("file://"))
    status, out, _ = lake("verify", "--json")
    assert status == 1
    found = [json.loads(line) for line in out.splitlines()]
    assert ("prod.users", "missing_folder") in {(item["name"], item["kind"]) for item in found}


def test_doctor_says_what_works_and_what_to_do(
    lake: Cli, nowhere: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = {line["check"]: line for line in lake.records("doctor")}
    assert (lines["storage"]["state"], lines["pylance"]["state"]) == ("ok", "ok")
    assert main(["doctor"]) == 0
    assert "no catalog was named" in capfd.readouterr().out
    status, out, _ = Cli(str(nowhere / "nope"), capfd)("doctor")
    assert status == 1
    assert "broken" in out
    monkeypatch.setattr(housekeeping, "NEEDED", ("pylance", "no-such-package"))
    monkeypatch.setitem(housekeeping.PARTS, "spark", ("no_such_module",))
    status, out, _ = lake("doctor", "--json")
    found = {line["check"]: line for line in map(json.loads, out.splitlines())}
    assert status == 1
    assert found["no-such-package"]["todo"] == "pip install no-such-package"
    assert (found["part spark"]["state"], "headwater[spark]" in found["part spark"]["todo"]) == ("missing", True)


def test_doctor_tries_a_bucket_before_there_is_a_catalog_in_it(
    s3_root: str, s3_options: dict[str, str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [f"--property=storage.{name}={value}" for name, value in s3_options.items()]
    status, out, _ = Cli(s3_root, capfd)("doctor", *options)
    assert (status, "holds no catalog yet, and creates only what is not there" in out) == (0, True)
    assert list(open_store(s3_root, s3_options).list()) == []
    put = ObjectStore.put

    def overwrite(store: ObjectStore, key: str, data: bytes, mode: PutMode) -> None:
        put(store, key, data)

    monkeypatch.setattr(ObjectStore, "put", overwrite)
    status, out, _ = Cli(s3_root, capfd)("doctor", *options)
    assert (status, "does not honour create-if-absent" in out) == (1, True)


def test_a_java_that_does_not_run_is_broken() -> None:
    def broken(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("java", 1)

    if found_java() is None:
        assert housekeeping._java()["state"] == ("missing" if wheel_runtime() is None else "ok")
    else:
        assert housekeeping._java()["state"] == "ok"
        assert housekeeping._java(broken)["state"] == "broken"
        old = SimpleNamespace(stderr='openjdk version "11.0.2" 2019-01-15\n')
        assert housekeeping._java(lambda *args, **options: old)["state"] == "missing"


def test_completion_knows_verbs_options_profiles_and_names(lake: Cli, nowhere: Path) -> None:
    assert set(candidates(["ver"])) == {"verify", "versions"}
    assert list(candidates(["token", "re"])) == ["revoke"]
    assert "--where" in set(candidates(["head", "--w"]))
    assert list(candidates(["head", "x", "--format", "js"])) == ["jsonl"]
    assert list(candidates(["completion", "z"])) == []
    headwater.Catalog(lake.root).create_table(["prod", "it's.b"], pa.table({"id": [1]}))
    assert list(candidates(["head", lake.root, "p"])) == ["prod."]
    assert list(candidates(["head", lake.root, "prod.u"])) == ["prod.users"]
    assert list(candidates(["head", "-c", lake.root, "'prod.\""])) == ["""'prod."it'"'"'s.b"'"""]
    assert list(candidates(["rename", "-c", lake.root, "prod.users", "pr"])) == []
    (nowhere / "headwater.toml").write_text(f'[catalog.mine]\nroot = "{lake.root}"\n')
    assert list(candidates(["head", "prod.u"])) == ["prod.users"]
    assert list(candidates(["head", "-c", "m"])) == ["mine"]


@pytest.mark.parametrize("shell", sorted(SCRIPTS))
def test_a_script_of_a_shell_is_read_by_that_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "headwater __complete" in script
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=script, text=True, capture_output=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")


def test_bash_completes_a_table(lake: Cli) -> None:
    program = f"""
    headwater() {{ "$PYTHON" -m headwater "$@"; }}
    {SCRIPTS["bash"]}
    COMP_WORDS=(headwater head -c {lake.root} prod.us); COMP_CWORD=4
    _headwater; echo "${{COMPREPLY[@]}}"
    """
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(["bash", "-c", program], text=True, capture_output=True, check=False, env=environment)
    assert done.stdout == "prod.users\n", done.stderr


def test_the_lines_of_the_readme_run(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    block = readme[readme.index("## Command line") :].split("```")[1].removeprefix("sh\n")
    for line in block.strip().splitlines():
        before, _, after = line.rpartition(" | ")
        words = shlex.split(after)
        if words[0] == "export":
            monkeypatch.setenv(*words[1].split("=", 1))
            continue
        if before:
            data = shlex.split(before)[1].encode()
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        assert main(words[1:]) == 0, (line, capfd.readouterr().err)
    assert "Basel" in capfd.readouterr().out


def test_a_catalog_that_cannot_be_read_completes_to_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["__complete", "head", "-c", "./none", "a"]) == 0
    assert capsys.readouterr() == ("", "")


def test_the_pipelines_verbs_feed_and_publish_a_stream_table(nowhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    catalog = headwater.Catalog("./lake")
    catalog.create_stream_table("raw.orders", pa.schema({"id": pa.int64(), "n": pa.int64()}), keys="id")
    (nowhere / "in.jsonl").write_text('{"id": 1, "n": 1}\n{"id": 2, "n": 2}\n')
    cli = Cli("./lake", capfd)
    cli.ok("ingest", "raw.orders", "in.jsonl", "--name", "files")
    cli.ok("publish", "raw.orders")
    assert cli.ok("count", "raw.orders") == "2\n"
    assert "orders" in cli.ok("lineage", "raw.orders")
    assert cli("lineage", "raw.orders", "--upstream", "--downstream")[0] == 5
    cli.ok("maintain", "raw.orders")
    assert cli("backfill", "raw.orders")[0] in (0, 5)
    cli.ok("undo", "raw.orders", "--source", "files", "--yes")
    assert cli.ok("count", "raw.orders") == "0\n"
    (nowhere / "pipeline.toml").write_text("not toml at all = = =")
    assert main(["run", "pipeline.toml"]) == 5


def test_doctor_asks_a_server_whether_it_answers(lake: Cli, capfd: pytest.CaptureFixture[str]) -> None:
    with start_in_thread(headwater.connect("metastore", {"root": lake.root})) as server:
        found = {line["check"]: line for line in Cli(server.url, capfd).records("doctor")}
        assert (found["storage"]["state"], "answers" in found["storage"]["what"]) == ("ok", True)
    status, out, _ = Cli(server.url, capfd)("doctor", "--json")
    assert (status, json.loads(out.splitlines()[-1])["state"]) == (1, "broken")


def test_lineage_behind_a_server_is_refused_in_one_sentence(lake: Cli, capfd: pytest.CaptureFixture[str]) -> None:
    stream = headwater.Catalog(lake.root).create_stream_table("prod.events", pa.schema([("id", pa.int64())]), ["id"])
    stream.upsert(pa.table({"id": [1]}))
    stream.publish()
    with start_in_thread(headwater.connect("metastore", {"root": lake.root})) as server:
        status, _, err = Cli(server.url, capfd)("lineage", "prod.events")
        assert (status, len(err.splitlines())) == (5, 1)
        assert "where the files of the catalog are" in err
