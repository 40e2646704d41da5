import json
import logging
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from datasets import load_from_disk
from errors import user_error

from bert_repro.configs import CorpusConfig, TextSource, TokenizerConfig
from bert_repro.corpus import part_files, plan, prepare
from bert_repro.corpus.cleaning import passages
from bert_repro.corpus.documents import find_sources
from bert_repro.corpus.part_files import PartMaker
from bert_repro.corpus.plan import prepare_plan, read_all, read_part
from bert_repro.corpus.prepare import prepare_corpus
from bert_repro.corpus.prepared_corpus import PreparedCorpus, manifest_digest
from bert_repro.corpus.tokenizer import train_tokenizer, train_wordpiece
from bert_repro.models.loading import load_tokenizer
from bert_repro.utils import files
from bert_repro.utils.parts import Engine

NOUNS = ["mountain", "river", "village", "winter", "teacher", "garden", "window", "letter"]


def document(number):
    """Two paragraphs and a heading between them; every document a different text."""
    first, second = NOUNS[number % 8], NOUNS[(number // 8) % 8]
    return (
        f"The {first} number {number} was seen by Mr. Smith from the {second} on a cold morning. It was gone at noon.\n"
        f"{second.title()} of the {first}\n"
        f"Nobody in the {second} had ever heard of the {first}, and nobody asked for it again after that day."
    )


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    train_wordpiece((document(number) for number in range(64)), vocab_size=200).save_pretrained(folder)
    return folder


@pytest.fixture
def make_config(tmp_path, tokenizer_dir):
    path = tmp_path / "raw.jsonl"
    path.write_text("".join(json.dumps({"text": document(number)}) + "\n" for number in range(40)))

    def make(**changes):
        options = {"input_files": (str(path),), "tokenizer": str(tokenizer_dir), "num_proc": 1}
        return CorpusConfig(**{**options, "output_dir": str(tmp_path / "corpus"), **changes})

    return make


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(plan, "PART_CHARACTERS", 2000)
    monkeypatch.setattr(part_files, "BLOCK_CHARACTERS", 700)


def prepared(config):
    prepare_corpus(config)
    return PreparedCorpus.load(config.output_dir)


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir()) if path.is_file()}


def sentence_texts(corpus, tokenizer, number):
    begin, end = corpus.document_sentences[number : number + 2]
    starts = corpus.sentence_starts[begin : end + 1]
    return [tokenizer.decode(corpus.gather(starts[i : i + 1], np.diff(starts)[i : i + 1])) for i in range(end - begin)]


def test_text_goes_in_and_the_same_sentences_come_out(make_config, tokenizer_dir, small_parts):
    manifest = prepare_corpus(make_config())
    corpus, tokenizer = PreparedCorpus.load(make_config().output_dir), load_tokenizer(tokenizer_dir)
    assert corpus.num_documents == manifest["counts"]["documents"] == 40
    assert len(manifest["parts"]) > 3
    for number in (0, 17, 39):
        first, second = NOUNS[number % 8], NOUNS[(number // 8) % 8]
        one, two, three = (text.replace(" ", "") for text in sentence_texts(corpus, tokenizer, number))
        assert one == f"the{first}number{number}wasseenbymr.smithfromthe{second}onacoldmorning."
        assert two == "itwasgoneatnoon." and three.startswith("nobodyinthe")


def test_manifest_counts_and_records_what_was_done(make_config):
    manifest = prepare_corpus(make_config())
    counts = manifest["counts"]
    assert counts["documents_read"] == 40 and counts["sentences"] == 120
    assert counts["bytes_read"] == sum(len(document(number)) for number in range(40))
    assert manifest["dropped_lines"]["heading"] == 40 and set(manifest["dropped_lines"]) >= {"list", "short_document"}
    assert counts["words"] == sum(len(line.split()) for n in range(40) for line in document(n).split("\n")[::2])
    assert manifest["settings"]["sentence_splitter_version"] and manifest["vocab_size"] <= 200
    assert manifest["special_ids"] == {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    assert json.loads((Path(make_config().output_dir) / "manifest.json").read_text()) == manifest


def test_datasets_opens_the_folder_and_gather_copies_slices_in_the_order_asked_for(make_config, small_parts):
    corpus = prepared(make_config())
    rows = load_from_disk(make_config().output_dir)
    assert rows.column_names == ["input_ids", "sentence_lengths", "key"] and len(rows) == 40
    assert str(rows.features["input_ids"].feature.dtype) == "uint16"
    every = np.array([token for row in rows for token in row["input_ids"]])
    assert np.array_equal(corpus.gather(corpus.document_starts[:-1], np.diff(corpus.document_starts)), every)
    assert [length for row in rows for length in row["sentence_lengths"]] == np.diff(corpus.sentence_starts).tolist()
    assert [len(row["sentence_lengths"]) for row in rows] == np.diff(corpus.document_sentences).tolist()
    assert rows["key"] == corpus.document_keys.tolist() and len(every) == corpus.num_tokens
    starts = corpus.sentence_starts[[70, 3, 119, 3]]
    lengths = np.array([4, 0, 2, 5])
    expected = np.concatenate([every[start : start + length] for start, length in zip(starts, lengths, strict=True)])
    assert np.array_equal(corpus.gather(starts, lengths), expected)
    assert corpus.gather([], []).dtype == np.uint16 and len(corpus.gather([], [])) == 0
    again = pickle.loads(pickle.dumps(corpus))
    assert len(pickle.dumps(corpus)) < 1000 and np.array_equal(again.gather(starts, lengths), expected)


def test_token_counts_are_part_of_the_corpus_and_need_no_second_reading(make_config, small_parts, monkeypatch):
    corpus = prepared(make_config())
    every = np.concatenate([row["input_ids"] for row in load_from_disk(make_config().output_dir)])
    expected = np.bincount(every, minlength=corpus.manifest["vocab_size"])
    assert "token_counts.npy" in corpus.manifest["sha256"] and len(corpus.manifest["parts"]) > 3
    # Without the tokens the counts can only come from the file.
    monkeypatch.setattr(corpus, "_parts", [])
    assert np.array_equal(corpus.token_counts(), expected) and corpus.token_counts().dtype == np.int64


def test_tokens_of_an_older_corpus_are_counted(make_config, small_parts):
    corpus = prepared(make_config())
    expected = corpus.token_counts()
    (corpus.folder / "token_counts.npy").unlink()
    digests = {name: digest for name, digest in corpus.manifest["sha256"].items() if name != "token_counts.npy"}
    rewrite_manifest(corpus, sha256=digests)
    assert np.array_equal(PreparedCorpus.load(corpus.folder).token_counts(), expected)


@pytest.mark.parametrize("change", ["shape", "type", "sum", "negative", "objects"])
def test_token_counts_that_do_not_fit_the_corpus_are_refused(make_config, change):
    """The digest is right, as in a corpus that somebody else made."""
    corpus = prepared(make_config())
    counts = corpus.token_counts()
    wrong = {
        "shape": counts[:-1],
        "type": counts.astype(np.float64),
        "sum": counts + 1,
        "negative": counts + np.eye(1, len(counts), dtype=np.int64)[0] * -(10**6),
        "objects": counts.astype(object),
    }[change]
    path = corpus.folder / "token_counts.npy"
    np.save(path, wrong, allow_pickle=True)
    rewrite_manifest(corpus, sha256={**corpus.manifest["sha256"], path.name: files.file_digest(path)})
    with user_error("token_counts.npy"):
        PreparedCorpus.load(corpus.folder).token_counts()


def rewrite_manifest(corpus, **changes):
    manifest = {**corpus.manifest, **changes}
    manifest["manifest_sha256"] = manifest_digest(manifest)
    (corpus.folder / "manifest.json").write_text(json.dumps(manifest))


def test_processes_and_interruptions_change_nothing(make_config, small_parts, tmp_path, monkeypatch, caplog):
    complete = make_config(output_dir=str(tmp_path / "complete"), num_proc=2)
    prepare_corpus(complete)
    broken = make_config(output_dir=str(tmp_path / "broken"))
    make_part, made = PartMaker.__call__, []

    def stop_at_third(maker, part):
        made.append(part.number)
        if made == [0, 1, 2]:
            raise KeyboardInterrupt
        make_part(maker, part)

    monkeypatch.setattr(PartMaker, "__call__", stop_at_third)
    with pytest.raises(KeyboardInterrupt):
        prepare_corpus(broken)
    assert not Path(broken.output_dir).exists()
    part = Path(broken.output_dir + ".preparing") / "part-00001.arrow"
    part.write_bytes(part.read_bytes()[:-1])  # cut short, it is made again
    with caplog.at_level(logging.INFO, "bert_repro"):
        prepare_corpus(broken)
    assert "1 of " in caplog.text
    assert made == [0, 1, 2, *range(1, len(made) - 2)]
    assert contents(complete.output_dir) == contents(broken.output_dir)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("broken")] == ["broken"]


def test_vocabularies_do_not_depend_on_processes_and_parts(make_config, small_parts, tmp_path):
    options = {"input_files": make_config().input_files, "vocab_size": 150}
    one, two = (
        train_tokenizer(TokenizerConfig(output_dir=str(tmp_path / f"{num_proc}"), num_proc=num_proc, **options))
        for num_proc in (1, 2)
    )
    expected = train_wordpiece((text for number in range(40) for text in passages(document(number))), vocab_size=150)
    assert one.get_vocab() == two.get_vocab() == expected.get_vocab()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "raw.jsonl"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"deduplicate": "exact"}, {"max_documents": 11}], ids=str)
def test_a_ray_cluster_makes_the_same_corpus(make_config, small_parts, tmp_path, options):
    pytest.importorskip("ray")
    local = make_config(output_dir=str(tmp_path / "local"), **options)
    ray = make_config(output_dir=str(tmp_path / "ray"), engine="ray", **options)
    for config in (local, ray):
        prepare_corpus(config)
    assert contents(local.output_dir) == contents(ray.output_dir)


def test_finished_corpus_is_reused_refused_or_replaced(make_config, monkeypatch):
    first = prepare_corpus(make_config())
    with monkeypatch.context() as patch:
        patch.setattr(prepare, "prepare_plan", None)
        assert prepare_corpus(make_config()) == first
    with user_error("max_documents", None, 5, "--overwrite_output_dir", setting="output_dir"):
        prepare_corpus(make_config(max_documents=5))
    assert prepare_corpus(make_config(max_documents=5, overwrite_output_dir=True))["counts"]["documents"] == 5
    assert PreparedCorpus.load(make_config().output_dir).num_documents == 5


@pytest.mark.parametrize("suffix", ["", ".preparing"])
def test_a_folder_with_something_else_is_never_replaced(make_config, suffix):
    folder = Path(make_config().output_dir + suffix)
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with user_error(folder, setting="output_dir"):
            prepare_corpus(make_config(overwrite_output_dir=overwrite))
    assert (folder / "thesis.tex").exists()


def test_lines_splitter_and_all_lines(make_config, tmp_path, caplog):
    path = tmp_path / "lines.txt"
    path.write_text("A heading\nOne. Two.\n\nShort\n")
    options = {"input_files": (str(path),), "text_passages_only": False}
    counts = prepare_corpus(make_config(**options, sentence_splitter="lines"))["counts"]
    assert (counts["documents"], counts["sentences"]) == (2, 3)
    assert "Only 2 documents" in caplog.text and "1.5 sentences on average" in caplog.text
    options["output_dir"] = str(tmp_path / "split")
    assert prepare_corpus(make_config(**options))["counts"]["sentences"] == 4


def test_special_tokens_in_a_text_are_text_and_truncation_is_off(make_config, tmp_path, tokenizer_dir):
    tokenizer = load_tokenizer(tokenizer_dir)
    tokenizer("x", truncation=True, max_length=4, padding="max_length")
    tokenizer.save_pretrained(tmp_path / "cutting")
    path = tmp_path / "marks.txt"
    path.write_text("The garden and the [SEP] and the [MASK] and the [PAD] were there.\n")
    options = {"text_passages_only": False, "tokenizer": str(tmp_path / "cutting"), "input_files": (str(path),)}
    corpus = prepared(make_config(**options))
    ids = corpus.gather([0], [corpus.num_tokens])
    assert len(ids) > 12 and not set(ids.tolist()) & {0, 2, 3, 4}


def test_an_empty_corpus_is_a_user_error(make_config, tmp_path):
    (tmp_path / "empty.txt").write_text("\n\n")
    with user_error(tmp_path / "empty.txt", setting="input_files"):
        prepare_corpus(make_config(input_files=(str(tmp_path / "empty.txt"),)))
    (tmp_path / "headings.txt").write_text("Contents\n\nIndex\n")
    with user_error(2, "--text_passages_only false"):
        prepare_corpus(make_config(input_files=(str(tmp_path / "headings.txt"),)))
    assert not Path(make_config().output_dir).exists()


def test_split_follows_the_text_alone_and_needs_both_sides(make_config, tmp_path):
    corpus = prepared(make_config())
    train, heldout = corpus.split(0.2)
    assert sorted([*train, *heldout]) == list(range(40)) and 2 <= len(heldout) <= 16
    twice = tmp_path / "twice.jsonl"
    rows = [json.dumps({"title": str(n), "text": document(n % 40)}) + "\n" for n in range(79, -1, -1)]
    twice.write_text("".join(rows))
    other = prepared(make_config(input_files=(str(twice),), output_dir=str(tmp_path / "other")))
    assert set(other.document_keys[other.split(0.2)[1]].tolist()) == set(corpus.document_keys[heldout].tolist())
    assert len(other.split(0.2)[1]) == 2 * len(heldout)
    assert len(corpus.split(1e-9)[1]) == 1
    corpus = prepared(make_config(max_documents=1, output_dir=str(tmp_path / "one")))
    with user_error("1 document", setting="heldout_fraction"):
        corpus.split(0.5)


def test_loading_something_else_is_a_user_error(tmp_path):
    with user_error(tmp_path, "manifest.json", "prepare_corpus"):
        PreparedCorpus.load(tmp_path)
    other = '{"format_version": 99, "files": {}, "parts": [], "counts": {}}'
    for content in ("{", "[]", "{}", '{"format_version": 1}', other):
        (tmp_path / "manifest.json").write_text(content)
        with user_error(tmp_path / "manifest.json"):
            PreparedCorpus.load(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"format_version": 2},
        {"vocab_size": 10**12},
        {"vocab_size": "200"},
        {"token_dtype": "object"},
        {"parts": [7]},
        {"parts": [{"file": "../other/part-00000.arrow", "sha256": "0"}]},
        {"parts": [{"file": "/etc/passwd", "sha256": "0"}]},
        {"parts": [{"file": "part-00000.arrow", "sha256": "0"}], "sha256": {}},
        {"sha256": {"../x": "0"}},
        {"counts": None},
    ],
    ids=str,
)
def test_a_manifest_from_outside_is_checked_where_it_is_read(make_config, changes):
    manifest = prepare_corpus(make_config())
    path = Path(make_config().output_dir) / "manifest.json"
    manifest = {**manifest, **changes}
    path.write_text(json.dumps({**manifest, "manifest_sha256": manifest_digest(manifest)}))
    with user_error(path):
        PreparedCorpus.load(make_config().output_dir)


EVERY_KIND = "part-00000.arrow sentence_starts.npy document_keys.npy tokenizer/tokenizer.json".split()
EVERY_KIND += ["token_counts.npy", "dataset_info.json", "manifest.json"]


@pytest.mark.parametrize("name", EVERY_KIND)
def test_damage_of_any_file_is_found_on_loading(make_config, name):
    prepare_corpus(make_config())
    path = Path(make_config().output_dir) / name
    data = path.read_bytes()
    middle = len(data) - len(data) // 3
    flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    if name == "manifest.json":
        flipped = data.replace(b'"documents": 40', b'"documents": 41')
    for damaged in (data[:-7], flipped):
        path.write_bytes(damaged)
        with user_error(name):
            PreparedCorpus.load(make_config().output_dir)
    path.unlink()
    with user_error(name):
        PreparedCorpus.load(make_config().output_dir)


def test_input_written_again_at_equal_size_is_other_input(make_config, small_parts, monkeypatch, tmp_path):
    raw = Path(make_config().input_files[0])
    prepare_corpus(make_config())
    interrupted = make_config(output_dir=str(tmp_path / "interrupted"))
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(prepare, "join_parts", lambda *_: 1 / 0)
        prepare_corpus(interrupted)
    raw.write_text(raw.read_text().replace("Smith", "Jones"))
    for config in (make_config(), interrupted):
        with user_error("--overwrite_output_dir", setting="output_dir"):
            prepare_corpus(config)
    make_part, other = PartMaker.__call__, raw.read_text().replace("Jones", "James")
    monkeypatch.setattr(PartMaker, "__call__", lambda *given: (make_part(*given), raw.write_text(other)))
    with user_error(setting="input_files"):
        prepare_corpus(make_config(output_dir=str(tmp_path / "meanwhile")))


def test_large_vocabularies_use_int32(make_config, tmp_path):
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(70000))]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens) + "\n")
    (tmp_path / "raw.txt").write_text("w69999 w0\n")
    options = {"tokenizer": str(tmp_path / "vocab.txt"), "input_files": (str(tmp_path / "raw.txt"),)}
    corpus = prepared(make_config(**options, text_passages_only=False))
    assert corpus.gather([0], [2]).tolist() == [70004, 5] and corpus.gather([], []).dtype == np.int32


def test_tokenizer_from_a_corpus_sees_passages_only(make_config, tmp_path):
    options = {"input_files": make_config().input_files, "vocab_size": 150, "lowercase": False}
    tokenizer = train_tokenizer(TokenizerConfig(output_dir=str(tmp_path / "trained"), **options))
    assert tokenizer.get_vocab() == load_tokenizer(tmp_path / "trained").get_vocab()
    assert "Nobody" in tokenizer.get_vocab() and "R" not in tokenizer.get_vocab()  # River heads no passage
    few = TokenizerConfig(output_dir=str(tmp_path / "few"), max_words=10, **options)
    assert len(train_tokenizer(few)) < len(tokenizer)


@pytest.fixture
def three_sources(tmp_path, tokenizer_dir):
    def make(**changes):
        for name, numbers in {"a": range(40), "b": range(40, 60), "c": range(60, 64)}.items():
            rows = "".join(json.dumps({"body": document(number)}) + "\n" for number in numbers)
            (tmp_path / f"{name}.jsonl").write_text(rows)
        passes = {"a": 1.0, "b": 0.5, "c": 3.0}
        sources = [
            TextSource(str(tmp_path / f"{name}.jsonl"), number, text_column="body") for name, number in passes.items()
        ]
        options = {"sources": tuple(sources), "tokenizer": str(tokenizer_dir), "output_dir": str(tmp_path / "corpus")}
        return CorpusConfig(**{**options, **changes})

    return make


def test_sources_come_as_often_as_they_say_in_any_number_of_processes(three_sources, tmp_path, small_parts):
    config = three_sources()
    corpus = prepared(config)
    a, b, c = corpus.manifest["sources"]
    assert (a["documents"], c["documents"]) == (40, 12) and 4 <= b["documents"] <= 16
    assert sum(source["tokens"] for source in (a, b, c)) == corpus.num_tokens
    assert sum(source["share"] for source in (a, b, c)) == pytest.approx(1, abs=1e-3)
    other = prepared(replace(config, output_dir=str(tmp_path / "two"), num_proc=2))
    assert other.content_digest == corpus.content_digest
    with user_error("--overwrite_output_dir", setting="output_dir"):
        prepare_corpus(replace(config, sources=(replace(config.sources[0], passes=2), *config.sources[1:])))


def test_small_languages_are_sampled_more_often(three_sources, tmp_path):
    large, small, _ = three_sources().sources
    languages = (replace(large, passes=1.0), replace(small, passes=1.0, language="de"))
    config = three_sources(sources=languages, sampling_exponent=0.5, sentence_splitter="lines")
    characters = [sum(len(document(number)) for number in numbers) for numbers in (range(40), range(40, 60))]
    sources = find_sources(config)
    made = prepare_plan(config, sources, tmp_path, Engine())
    assert made.passes == pytest.approx([1.0, (characters[1] / characters[0]) ** -0.5])
    planned = [text for part in made.parts for text in read_part(part, made.passes, sources, tmp_path)]
    assert [text.text for text in planned] == [text.text for text in read_all(config, sources)]


def test_duplicates_are_dropped_and_counted_also_by_a_resumed_preparation(
    make_config, tmp_path, small_parts, monkeypatch
):
    texts = [document(number) for number in range(30)]
    changed = texts[3].replace("noon", "dusk")
    paragraph = "A paragraph of more than eight words that stands in two of the documents.\n"
    rows = [*texts, texts[5].upper(), changed, paragraph + document(40), paragraph + document(41)]
    path = tmp_path / "raw.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
    none, exact, near = (
        prepared(make_config(deduplicate=kind, output_dir=str(tmp_path / kind))) for kind in ("none", "exact", "near")
    )
    assert (none.num_documents, exact.num_documents) == (34, 33)
    # Texts of this kind differ in their nouns alone, so some more than the changed one are near each other.
    assert near.num_documents < 33
    counts = exact.manifest["counts"]
    # The second paragraph of a made-up text comes again with every number that has the same nouns.
    assert counts["duplicate_documents"] == 1 and counts["duplicate_paragraphs"] >= 1
    assert "duplicate_documents" not in none.manifest["counts"]

    config = make_config(deduplicate="exact", output_dir=str(tmp_path / "again"))
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(prepare, "join_parts", lambda *_: 1 / 0)
        prepare_corpus(config)
    next(Path(f"{config.output_dir}.preparing").glob("part-*.json")).unlink()
    resumed = prepared(config)
    assert resumed.content_digest == exact.content_digest and resumed.manifest["counts"] == counts


def test_other_languages_have_their_own_rules_for_sentences(tmp_path, tokenizer_dir):
    german = "Am 3. Mai kam Dr. Weber nach Hause. Er war müde. Niemand hatte ihn an diesem Abend noch erwartet."
    config = CorpusConfig(
        tokenizer=str(tokenizer_dir), output_dir=str(tmp_path / "de"), language="de", text_passages_only=False
    )
    assert prepare_corpus(config, texts=[german, german + " Warum?"])["counts"]["sentences"] == 7
    with user_error("--language tlh", setting="language"):
        prepare_corpus(replace(config, language="tlh"), texts=[german])


# --- Nothing is lost ------------------------------------------------------------------------------------------------


def test_without_locks_two_preparations_of_one_folder_do_not_mix(make_config, small_parts, monkeypatch, tmp_path):
    """On NFS a lock of the kernel may be granted to two machines; the second one must still be refused."""
    monkeypatch.setattr(files, "fcntl", None)
    other = make_config(max_documents=3, overwrite_output_dir=True)
    make_part = PartMaker.__call__
    refused = []

    def start_another(maker, part):
        make_part(maker, part)
        if part.number == 1 and not refused:
            refused.append(part.number)
            # The claim names this process, which would be allowed to take it again.
            claim = Path(f"{other.output_dir}.claim")
            content = json.loads(claim.read_text())
            claim.write_text(json.dumps({**content, "host": "another"}))
            with user_error(claim, "another", setting="output_dir"):
                prepare_corpus(other)
            claim.write_text(json.dumps(content))

    monkeypatch.setattr(PartMaker, "__call__", start_another)
    corpus = prepared(make_config())
    assert refused and corpus.num_documents == 40
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "raw.jsonl"]


@pytest.mark.parametrize("loss", ["arrow", "json", "counts", "other plan"])
def test_a_part_that_is_missing_or_of_another_plan_is_never_left_out(make_config, small_parts, monkeypatch, loss):
    make_parts = prepare.make_parts

    def lose_a_part(parts, make, **options):
        make_parts(parts, make, **options)
        path = make.folder / "part-00001.json"
        if loss == "arrow":
            path = path.with_suffix(".arrow")
        if loss == "counts":
            path = path.with_suffix(".npy")
        if loss == "other plan":
            path.write_text(json.dumps({**json.loads(path.read_text()), "plan": "0"}))
        else:
            path.unlink()

    with monkeypatch.context() as patch:
        patch.setattr(prepare, "make_parts", lose_a_part)
        with user_error("part-00001.arrow"):
            prepare_corpus(make_config())
    assert not Path(make_config().output_dir).exists()
    assert prepared(make_config()).num_documents == 40


def test_parts_that_are_not_in_the_plan_and_work_files_stay_out(make_config, small_parts, monkeypatch):
    def add_files(parts, make, **options):
        for name in ("part-00099.arrow", "part-00099.npy", "part-00099.json", ".writing-host.1-part-00000.arrow"):
            (make.folder / name).write_text("left by another program")
        make_parts(parts, make, **options)

    make_parts = prepare.make_parts
    monkeypatch.setattr(prepare, "make_parts", add_files)
    corpus = prepared(make_config())
    names = {path.name for path in corpus.folder.rglob("*") if path.is_file()}
    assert names == {*(Path(name).name for name in corpus.manifest["sha256"]), "manifest.json"}


@pytest.mark.parametrize("stage", ["_remove", "replace_folder"])
def test_a_stop_after_the_manifest_was_written_is_continued(make_config, small_parts, monkeypatch, stage):
    """A stop while the work files are removed, or just before the corpus gets its name."""
    uninterrupted = prepared(make_config(output_dir=make_config().output_dir + "-whole"))
    removed = []

    def stop(path, *_, **__):
        removed.append(path)
        if stage == "replace_folder" or path.name == "plan.json":
            raise KeyboardInterrupt
        prepare.shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(prepare, stage, stop)
        prepare_corpus(make_config())
    assert removed
    assert contents(prepared(make_config()).folder) == contents(uninterrupted.folder)


def test_a_corpus_that_another_run_finished_meanwhile_is_kept(make_config, small_parts, monkeypatch, tmp_path):
    elsewhere = prepared(make_config(output_dir=str(tmp_path / "elsewhere"), max_documents=7)).folder
    join_parts = prepare.join_parts

    def another_finishes(*arguments):
        join_parts(*arguments)
        elsewhere.rename(make_config().output_dir)

    monkeypatch.setattr(prepare, "join_parts", another_finishes)
    with user_error("corpus", setting="output_dir"):
        prepare_corpus(make_config())
    assert PreparedCorpus.load(make_config().output_dir).num_documents == 7


def test_a_linked_output_folder_stays_on_its_disk(make_config, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    Path(make_config().output_dir).symlink_to(disk / "corpus")
    assert prepared(make_config()).num_documents == 40
    assert Path(make_config().output_dir).is_symlink() and (disk / "corpus" / "manifest.json").exists()
    assert sorted(path.name for path in disk.iterdir()) == ["corpus"]


def test_a_mount_point_as_output_folder(make_config, mount_point):
    for documents in (40, 5):
        config = make_config(output_dir=str(mount_point), max_documents=documents, overwrite_output_dir=True)
        assert prepared(config).num_documents == documents
        assert not [path.name for path in mount_point.iterdir() if path.name.startswith(".")]
    assert prepare_corpus(config)["counts"]["documents"] == 5
