"""The run document: always valid when built, never trusted when read, clean when it leaves."""

import copy
import json
import math
import os
import subprocess
import sys
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kforge_nb.errors import DocumentError, StoreError
from kforge_nb.store import Store, document
from kforge_nb.store.clean import clean, scrubber, secret_values
from kforge_nb.store.remembered import Remembered
from kforge_nb.store.rules import problems
from tests.store.filling import fill
from tests.store.make_example import FILE
from tests.store.make_example import example as make

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**60)
    | st.floats()
    | st.text(st.characters(), max_size=20),  # lone surrogates too
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


def test_the_example_file_is_what_its_maker_makes():
    """Views are tested against the file, so it must be valid and not edited by hand."""
    assert document.load(FILE) == make()


def test_built_is_what_was_run(store, example):
    """From records through the store to the document nothing may change but ids and times."""
    run = fill(store, example)
    built = document.validate(document.build(store, run))
    for key in ("targets", "decisions", "whole", "details", "progress", "workload", "device"):
        assert built[key] == example[key], key
    for key in ("state", "fidelity", "recommendation", "counters", "versions", "options"):
        assert built[key] == example[key], key

    def same(rows):
        return [{k: v for k, v in r.items() if k != "created"} for r in rows]

    assert same(built["nodes"]) == same(example["nodes"])
    assert same(built["costs"]) == same(example["costs"])


def test_details_on_demand_are_those_of_the_whole(store, example):
    """The live view's compact document plus details by click must equal the saved document."""
    run = fill(store, example)
    whole = document.build(store, run)
    compact = document.validate(document.build(store, run, details=False))
    assert compact == {**whole, "details": {}}
    for node, details in whole["details"].items():
        assert document.details_of(store, run, node) == details


@pytest.mark.parametrize("ratio", ["inf", math.inf])
def test_the_guards_own_record_of_fidelity(store, ratio):
    """Inputs counted by kind and an infinite ratio, as the guard writes them, must not be lost."""
    run = store.create_run()
    store.add_target(run, 0, {"fingerprint": "f"})
    record = {"ratio": ratio, "ratios": [1.0, ratio], "inputs": {"cell": 1, "redrawn": 7}}
    store.update_run(run, fidelity={**record, "limit": 1.05, "note": "n"})
    store.set_decision(run, 0, {"target": 0, "installed": False, "fidelity": record})
    built = document.validate(document.build(store, run))
    for found in (built["fidelity"], built["decisions"][0]["fidelity"]):
        assert (found["ratio"], found["infinite"], found["inputs"]) == (None, True, 8)
        assert found["input_kinds"] == {"cell": 1, "redrawn": 7}
    assert built["fidelity"]["limit"] == 1.05


def test_a_young_run_is_valid(store):
    """A run that has only begun, whose records lack nearly everything, must give a document."""
    run = store.create_run()
    document.validate(document.build(store, run))
    store.add_target(run, 0, {"fingerprint": "f"})
    store.update_run(run, progress={"phase": "profiling", "judged": 0})
    built = document.validate(document.build(store, run))
    assert built["targets"][0]["state"] == "waiting"
    assert built["progress"]["budget"] is None


@given(JSON, JSON, JSON, st.dictionaries(st.text(max_size=9), JSON, max_size=3), st.text())
@settings(
    deadline=None,
    max_examples=60,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
def test_whatever_the_records_hold_the_document_is_valid(
    tmp_path_factory, figure, texts, notes, facts, reason
):
    """Odd figures, texts and facts in the records must never make an invalid document."""
    folder = tmp_path_factory.mktemp("d")
    with Store(folder / "store.db") as store:
        run = store.create_run(options=facts, device=facts, workload={"notes": [notes]})
        odd = figure if isinstance(figure, int | float) else None
        target = {"fingerprint": str(figure), "name": texts, "mean_us": odd, "unknown": notes}
        store.add_target(run, 0, target)
        timing = {"against": "eager", "ratio": odd, "n": odd, "ours_samples_us": [odd]}
        store.add_node(
            run,
            "0.0",
            target=0,
            parent=None,
            action="draft",
            candidate={"source": reason, "plan": facts, "title": texts, "origin": facts},
            evaluation={"verdict": "wrong", "reason": reason, "log": reason, "timings": [timing]},
        )
        store.set_decision(run, 0, {"target": 0, "reason": reason, "isolated": {"ratio": odd}})
        store.update_run(run, counters=facts, fidelity={"ratio": odd, **facts}, state_reason=reason)
        built = document.validate(document.build(store, run))
        for redact in (False, True):
            path = document.save(folder / "x.kforge.json", built, redact=redact)
            again = document.load(path)
            assert again["nodes"][0]["verdict"] == "wrong"
        assert document.load(document.save(folder / "y", built)) == built


# -- reading what others wrote ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "path", "value"),
    [
        (lambda d: d.pop("nodes"), r"at \$", "nodes"),
        (lambda d: d.update(extra=1), r"at \$", "extra"),
        (lambda d: d["nodes"][3].update(verdict="brilliant"), r"\$\.nodes\[3\]\.verdict", "brill"),
        (lambda d: d["nodes"][3].update(visits=-1), r"\$\.nodes\[3\]\.visits", "-1"),
        (lambda d: d["nodes"][3].update(parent="0.9"), r"\$\.nodes\[3\]\.parent", "0.9"),
        (lambda d: d["nodes"][3].update(id="0.2"), r"\$\.nodes\[3\]\.id", "0.2"),
        (lambda d: d["nodes"][3].update(target=9), r"\$\.nodes\[3\]\.target", "9"),
        (lambda d: d["nodes"][0].update(parent="0.0"), r"\$\.nodes\[0\]\.parent", "0.0"),
        (lambda d: d["targets"][0].update(best="1.0"), r"\$\.targets\[0\]\.best", "1.0"),
        (lambda d: d["targets"][0].update(index=1), r"\$\.targets", "same index"),
        (lambda d: d["targets"][0].update(name="x" * 501), r"\$\.targets\[0\]\.name", "501|longer"),
        (lambda d: d["decisions"][0].update(target=7), r"\$\.decisions\[0\]\.target", "7"),
        (lambda d: d["decisions"][0].update(node="1.0"), r"\$\.decisions\[0\]\.node", "1.0"),
        (lambda d: d["costs"][0].update(target=7), r"\$\.costs\[0\]\.target", "7"),
        (lambda d: d["details"].update({"9.9": d["details"]["0.0"]}), r"\$\.details", "9.9"),
        (lambda d: d.update(name="<script>"), r"\$\.name", "script"),
        (lambda d: d.update(created="yesterday"), r"\$\.created", "yesterday"),
        (lambda d: d.update(state="asleep"), r"\$\.state", "asleep"),
    ],
)
def test_invalid_documents_name_path_and_value(example, change, path, value):
    """A broken document must be refused in a message that says where and what."""
    change(example)
    with pytest.raises(DocumentError, match=path) as caught:
        document.validate(example)
    assert any(v in str(caught.value) for v in value.split("|"))
    assert len(str(caught.value)) < 600


def test_a_document_of_the_version_before_reads_as_one_of_today(example):
    """1.2 only added optional fields, so a 1.1 file differs in its version and nothing else."""
    old = {**example, "schema": "kforge.run/1.1"}
    assert document.validate(old) == example


def test_counters_of_a_decision_keep_their_figures_and_lose_their_words(example):
    """Reasons of fallbacks and notes are free text in a stranger's file; counts are not."""
    counted = {"launches": 9, "replayed": 0, "copies": 1, "shadowed": 3, "note": "my_model is off"}
    example["decisions"][0]["counters"] = {**counted, "fallbacks": {"my_model": 2, "b": 1}}
    shown = document.redacted(document.validate(example))
    assert shown["decisions"][0]["counters"]["fallbacks"] == {"any reason": 3}
    assert "my_model" not in json.dumps(shown)


def test_a_newer_document_asks_for_an_upgrade(example):
    """A document of a later schema must not be half read."""
    with pytest.raises(DocumentError, match=r"newer kforge_nb .*kforge\.run/2.*upgrade"):
        document.validate({**example, "schema": "kforge.run/2", "surprise": {}})


@pytest.mark.parametrize("data", [[], "x", None, {}, {"schema": 1}, {"schema": "other/1"}])
def test_other_json_is_no_document(data):
    """Other JSON files must be told apart at once."""
    with pytest.raises(DocumentError, match="must be"):
        document.validate(data)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (b"\x80\x04pickle", "no run document"),
        (b"", "no run document"),
        (b'{"schema": "kforge.run/1", "schema": "kforge.run/1"}', "stands twice"),
        (b'{"a": NaN}', "NaN is no JSON number"),
        (b'{"a": -Infinity}', "no JSON number"),
        (b'{"a": 1e999}', "too large"),
        (b'{"a": ' + b"9" * 5000 + b"}", "no run document"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deep"),
        (b'{"schema":"kforge.run/1","x":' + b'{"a":' * 80 + b"1" + b"}" * 81, "nested deeper"),
    ],
)
def test_hostile_files_are_refused(tmp_path, text, word):
    """Whatever bytes a file holds, reading it must end in one DocumentError."""
    path = tmp_path / "x.kforge.json"
    path.write_bytes(text)
    with pytest.raises(DocumentError, match=word):
        document.load(path)


def test_too_large_a_file_is_not_read(tmp_path, monkeypatch):
    """A huge file must be refused by its size, before it is in memory."""
    path = tmp_path / "x.kforge.json"
    with path.open("wb") as f:
        f.truncate(document.LARGEST_BYTES + 1)
    with pytest.raises(DocumentError, match="are not read"):
        document.load(path)


def test_a_missing_file_is_a_message(tmp_path):
    """A wrong path must be one line."""
    with pytest.raises(DocumentError, match="cannot be read"):
        document.load(tmp_path / "none.kforge.json")


def test_a_long_run_validates_in_time(example):
    """A document of a long run must be checked in seconds: two thousand nodes with details."""
    node, details = example["nodes"][0], example["details"]["0.0"]
    example["nodes"] += [{**node, "id": f"0.{i}"} for i in range(100, 2100)]
    example["details"] |= {f"0.{i}": details for i in range(100, 2100)}
    start = time.process_time()
    document.validate(example)
    assert time.process_time() - start < 20


# -- what leaves -------------------------------------------------------------------------------


def test_saving_is_whole_or_not_at_all(tmp_path, example, monkeypatch):
    """When writing fails the old file must stay as it was, with no rubbish beside it."""
    path = document.save(tmp_path / "x.kforge.json", example)
    before = path.read_bytes()

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left"):
        document.save(path, {**example, "state": "failed"})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_saving_refuses_what_loading_would(tmp_path, example):
    """An invalid document must not be written at all."""
    with pytest.raises(DocumentError):
        document.save(tmp_path / "x.kforge.json", {**example, "state": "asleep"})
    assert list(tmp_path.iterdir()) == []


def test_a_saved_file_has_the_usual_permissions(tmp_path, example):
    """The file must be as readable as any other that the user makes."""
    (tmp_path / "usual").write_text("")
    saved = document.save(tmp_path / "x.kforge.json", example)
    assert saved.stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_non_finite_figures_become_null(tmp_path, example):
    """JSON knows no infinity, so an infinite error must be saved as null."""
    example["details"]["0.0"]["errors"][0]["candidate"] = math.inf
    example["nodes"][0]["value"] = math.nan
    saved = document.load(document.save(tmp_path / "x", example))
    assert saved["details"]["0.0"]["errors"][0]["candidate"] is None
    assert saved["nodes"][0]["value"] is None


PLANTED = "pl4nted-s3cret-value"


def plant(example, text):
    """Puts a text wherever a document takes text."""
    found = copy.deepcopy(example)
    found["state_reason"] = f"failed with {text}"
    found["options"]["note"] = text
    found["options"][f"key {text}"] = 1
    found["device"]["more"] = [{"deep": text}]
    found["versions"]["package"] = text
    found["workload"]["notes"].append(f"saw {text} here")
    found["workload"]["modules"][0] |= {"name": text, "class": text}
    found["progress"] |= {"message": text, "phase": text}
    found["targets"][0] |= {"name": text, "code": f"x = '{text}'", "modules": [text]}
    found["targets"][0] |= {"variant": text, "state_reason": text}
    found["nodes"][0] |= {"title": text, "reason": text, "origin": {"proposer": text, "p": text}}
    details = found["details"]["0.0"]
    details |= {"source": f"// {text}", "log": f"{text}{text}", "resources": {"r": text}}
    details["plan"]["symbols"] = {"S": text}
    details["mismatches"] = [{"value": text}]
    details["errors"][0] |= {"output": text, "input_set": text}
    details["timings"][0]["against"] = text
    found["decisions"][0]["reason"] = text
    found["decisions"][0]["fidelity"] = {"ratio": 1.0, "inputs": 8, "note": text, "more": text}
    found["whole"][0]["name"] = text
    found["fidelity"]["note"] = text
    found["recommendation"] = {"rest": text, "reason": text}
    found["counters"] = {"reasons": {text: 3}}
    return document.validate(found)


@pytest.mark.parametrize(
    "variable", ["OPENAI_API_KEY", "HF_TOKEN", "my_secret", "DB_PASSWORD", "AWS_SECRET_ACCESS_KEY"]
)
@pytest.mark.parametrize("redact", [False, True])
def test_secrets_are_never_saved(tmp_path, example, monkeypatch, variable, redact):
    """The value of a key in the environment must be in no string of a saved document."""
    planted = plant(example, PLANTED)
    assert PLANTED in document.save(tmp_path / "open", planted).read_text()
    monkeypatch.setenv(variable, PLANTED)
    text = document.save(tmp_path / "x", planted, redact=redact).read_text()
    assert PLANTED not in text
    document.load(tmp_path / "x")


def test_secrets_are_not_even_built(store, example, monkeypatch):
    """The view and the notebook show built documents, so these must be clean already."""
    run = fill(store, plant(example, PLANTED))
    monkeypatch.setenv("SERVICE_TOKEN", PLANTED)
    assert PLANTED not in json.dumps(document.build(store, run))
    assert PLANTED not in json.dumps(document.details_of(store, run, "0.0"))


@pytest.mark.parametrize(
    "text",
    [
        "sk-proj-abcdefghijklmnop1234",
        "hf_abcdefghijklmnopqrstuvwx",
        "ghp_abcdefghijklmnopqrstuvwxyz0123",
        "AKIAABCDEFGHIJKLMNOP",
        "Authorization: Bearer abcdef123456.xyz",
        "http://user:hunter22@proxy:80/",
    ],
)
def test_well_known_shapes_of_secrets_are_removed(text):
    """Keys that are not in the environment are known by their shape."""
    assert "[removed]" in scrubber({})(f"error near {text} in line 3")


def test_ordinary_text_is_left_alone():
    """Scrubbing must not eat code, numbers, paths or addresses."""
    text = "for (int i = 0; i < n; ++i) http://host:80/a?b=c sk-learn task-1 /usr/lib 3.14"
    assert scrubber({"PATH": "/usr/lib", "KEYBOARD": "us", "API_KEY": "us"})(text) == text


def test_longer_secrets_go_first():
    """A secret that holds another must be removed whole."""
    environment = {"A_KEY": "abcdef", "B_KEY": "abcdefghij", "C": "visible-value"}
    assert secret_values(environment) == ["abcdefghij", "abcdef"]
    assert scrubber(environment)("x abcdefghij y") == "x [removed] y"


def test_clean_makes_plain_data():
    """Tuples, sets, odd keys and objects become JSON; equal data stays equal."""
    data = {1: (1, 2.5, None, True), "s": {"b", "a"}, "o": FILE, "n": math.nan}
    assert clean(data, str) == {
        "1": [1, 2.5, None, True],
        "s": ["a", "b"],
        "o": str(FILE),
        "n": None,
    }


def test_redaction_leaves_nothing_of_the_users_code(tmp_path, example):
    """Names, code, notes, logs and reasons must be gone; figures and verdicts must stay."""
    planted = plant(example, "MyPrivateThing")
    planted["versions"]["package"] = "1.0"  # versions are no code
    saved = document.load(document.save(tmp_path / "x", planted, redact=True))
    text = json.dumps(saved)
    assert "MyPrivateThing" not in text
    for word in ("encoder", "BertModel", "tokenizer", "forward", "extern", "minilm", "gelu"):
        assert word not in text, word
    for before, after in zip(example["nodes"], saved["nodes"], strict=True):
        same = ("id", "parent", "action", "verdict", "speedup", "low", "high", "ours_us", "seconds")
        assert {k: before[k] for k in same} == {k: after[k] for k in same}
    assert [t["share"] for t in saved["targets"]] == [t["share"] for t in example["targets"]]
    assert saved["whole"][1:] == example["whole"][1:]


def test_labels_are_stable(example):
    """The same module has the same label everywhere in the document, and every time."""
    name = example["targets"][0]["modules"][0]
    example["targets"][1]["modules"].append(name)
    example["workload"]["modules"][0]["name"] = name
    redacted = document.redacted(example)
    labels = {redacted["targets"][0]["modules"][0], redacted["targets"][1]["modules"][-1]}
    labels.add(redacted["workload"]["modules"][0]["name"])
    assert labels == {"module 1"}
    assert document.redacted(example) == redacted
    assert document.redacted(redacted) == redacted


def test_the_schema_travels_with_the_package():
    """The schema must be found from an installed package, and be a valid one itself."""
    code = (
        "from kforge_nb.store import document\n"
        "from jsonschema import Draft202012Validator\n"
        "Draft202012Validator.check_schema(document.schema())\n"
        "print(document.schema()['properties']['schema']['const'])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == document.SCHEMA


ODD_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(allow_nan=False), st.text(max_size=4),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.none(), max_size=2),
)  # fmt: skip


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_our_rules_say_what_json_schema_says(example, data):
    """Whatever is put where in a document, it is valid here exactly where the standard says so."""
    jsonschema = pytest.importorskip("jsonschema")
    changed = json.loads(json.dumps(example))
    place = changed
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        inner = place[key]
        if not isinstance(inner, dict | list) or data.draw(st.booleans()):
            if isinstance(place, dict) and data.draw(st.booleans()):
                key = data.draw(st.sampled_from([key, "surprise"]))
            place[key] = data.draw(ODD_VALUES)
            break
        place = inner
    theirs = jsonschema.Draft202012Validator(document.schema()).is_valid(changed)
    assert theirs == (next(problems(changed, document.schema()), None) is None)


def test_a_rule_that_is_not_known_is_no_free_pass():
    """A keyword that the rules do not know must be an error, never ignored."""
    with pytest.raises(ValueError, match="minItems"):
        list(problems([], {"type": "array", "minItems": 1}))


def test_a_document_made_again_costs_what_is_new_and_is_the_same(store, example):
    """Rows made before are taken over, also when another part of the run has changed."""
    run = fill(store, example)
    memory = Remembered()
    first = document.build(store, run, details=False, memory=memory)
    store.set_statistics(run, [("0.1", 77, 0.5)])
    store.replace_evaluation(run, "0.2", {"verdict": "wrong", "reason": "looked at again"})
    again = document.build(store, run, details=False, memory=memory)

    assert again == document.build(store, run, details=False)
    rows = {row["id"]: row for row in again["nodes"]}
    assert (rows["0.1"]["visits"], rows["0.2"]["reason"]) == (77, "looked at again")
    old = {row["id"]: row for row in first["nodes"]}
    assert [i for i in rows if rows[i] is not old[i]] == ["0.1", "0.2"]


def test_a_secret_that_is_new_makes_every_row_anew(store, example, monkeypatch):
    """A key set after a row was made is scrubbed from it all the same."""
    example["nodes"][0]["title"] = "uses hunter2hunter2"
    run = fill(store, example)
    memory = Remembered()
    assert (
        "hunter2" in document.build(store, run, details=False, memory=memory)["nodes"][0]["title"]
    )
    monkeypatch.setenv("SOME_API_KEY", "hunter2hunter2")
    assert (
        "hunter2"
        not in document.build(store, run, details=False, memory=memory)["nodes"][0]["title"]
    )
