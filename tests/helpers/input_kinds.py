"""Every kind of file that a recipe reads: a sound example, how the recipe reads it, and what it may mean when changed.

What a reader returns for a changed file is compared with `plain`: what a few lines without any check read from the same
bytes. Equal means that the file now says so, which no reader can know to be wrong (`HARMLESS` says why, kind by kind).
Kinds without `plain` are protected by digests: nothing but the original may come out of them.
"""

import csv
import dataclasses
import gzip
import io
import json
import lzma
import random
import shutil
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mutations
import numpy as np

from bert_repro.configs import GlueConfig, SwagConfig, TriviaqaConfig
from bert_repro.corpus.documents import find_sources, read_documents
from bert_repro.corpus.prepared_corpus import PreparedCorpus
from bert_repro.errors import UserError

ORIGINAL: dict[str, Any] = {}
"""What the sound model reads as; `plain_config` and `plain_weights` change one half of it. And the tiny world."""
WORDS = "a small river runs under old stone light and green trees sing in the cold morning road".split()


@dataclass(frozen=True)
class Kind:
    """A kind of input.

    Args:
        make: writes a sound example into a folder, given the tiny world of the tests.
        file: the file that is changed, or a pattern of several.
        read: reads it as the recipe does.
        mutate: changes its content.
        plain: reads the content without checks; None: only the original may come out.
    """

    make: Callable[[Any, Path], object]
    file: str
    read: Callable[[Path], Any]
    mutate: mutations.Mutation
    plain: Callable[[bytes], Any] | None = None


def sentences(number: int) -> list[str]:
    generator = random.Random(number)
    return [" ".join(generator.choices(WORDS, k=8)).capitalize() + "." for _ in range(number)]


def utf8(content: bytes) -> str:
    return content.removeprefix(b"\xef\xbb\xbf").decode()


def lines_of(content: bytes) -> list[str]:
    lines = [line.rstrip("\r") for line in utf8(content).split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


# -------------------------------------------------------------------------------------------------------------- tables


def make_glue(world: Any, folder: Path) -> None:
    rows = [f"{text}\t{number % 2}" for number, text in enumerate(sentences(8))]
    (folder / "SST-2").mkdir()
    (folder / "SST-2/train.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")


def read_glue(folder: Path) -> Any:
    from bert_repro.tasks.glue.glue_tasks import SST2

    return SST2.load(folder, ["train"])["train"].to_dict()


def plain_glue(content: bytes) -> Any:
    names, *rows = (line.split("\t") for line in lines_of(content))
    texts, labels = ([row[names.index(name)] for row in rows] for name in ("sentence", "label"))
    return {"sentence": texts, "label": [int(label) for label in labels], "idx": list(range(len(rows)))}


def make_custom(world: Any, folder: Path, name: str) -> None:
    rows = list(zip(sentences(8), ["good", "bad, very", "good", 'so "so"'] * 2, strict=True))
    with (folder / name).open("w", newline="") as file:
        if name.endswith("csv"):
            csv.writer(file).writerows([("text", "label"), *rows])
        else:
            file.writelines(json.dumps({"text": text, "label": label, "id": 3}) + "\n" for text, label in rows)


def read_custom(path: Path) -> Any:
    from bert_repro.tasks.custom_data import custom_classification

    config = GlueConfig(model_name_or_path="m", output_dir="o", do_train=True, train_file=str(path))
    task = custom_classification(config)
    found = task.load(None, ["train"])["train"]
    return [found[task.text_columns[0]][:], [task.label_names[label] for label in found["label"][:]]]


def plain_csv(content: bytes) -> Any:
    text = utf8(content)
    first = text.split("\n", 1)[0]
    delimiter = next((mark for mark in ",;\t" if mark in first), ",")
    rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if row]
    names = rows.pop(0)
    return [[row[names.index(name)] for row in rows] for name in (text_name(names), "label")]


def text_name(names: list[str]) -> str:
    return next(name for name in ("text", "sentence") if name in names)


def plain_json_lines(content: bytes) -> Any:
    rows = [json.loads(line) for line in lines_of(content) if line.strip()]
    values = [[row[name] for row in rows] for name in (text_name([*rows[0]]), "label")]
    return [[value if isinstance(value, str) else json.dumps(value) for value in column] for column in values]


def make_swag(world: Any, folder: Path) -> None:
    names = ["sent1", "sent2", "ending0", "ending1", "ending2", "ending3"]
    with (folder / "train.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["", "video-id", *names, "label"])
        for number in range(6):
            table.writerow([number, f"v{number}", *sentences(6), number % 4])


def read_swag(folder: Path) -> Any:
    from bert_repro.tasks.multiple_choice import custom_choices

    path = folder / "train.csv"
    task = custom_choices(SwagConfig(model_name_or_path="m", output_dir="o", do_train=True, train_file=str(path)))
    return task.load(None, ["train"])["train"].to_dict()


def plain_swag(content: bytes) -> Any:
    first = utf8(content).split("\n", 1)[0]
    delimiter = next((mark for mark in ",;\t" if mark in first), ",")
    rows = [row for row in csv.reader(io.StringIO(utf8(content), newline=""), delimiter=delimiter) if row]
    names = rows.pop(0)
    count = next(number for number in range(9) if f"ending{number}" not in names)
    texts = ("sent1", "sent2", *(f"ending{number}" for number in range(count)))
    columns: dict[str, list[Any]] = {name: [row[names.index(name)] for row in rows] for name in texts}
    columns["label"] = [int(row[names.index("label")]) for row in rows]
    return {**columns, "idx": list(range(len(rows)))}


def make_tagged(world: Any, folder: Path) -> None:
    lines = ["-DOCSTART- -X- -X- O", ""]
    for text in sentences(8):
        lines += [f"{word} NN B-NP {('O', 'I-PER', 'I-LOC')[len(word) % 3]}" for word in text.split()] + [""]
    (folder / "eng.train").write_text("\n".join(lines) + "\n")


def read_tagged(folder: Path) -> Any:
    from bert_repro.tasks.tagging.tagged_text import read_tagged_text
    from bert_repro.tasks.tagging.tagging_task import CONLL2003

    CONLL2003.load(folder, ["train"])
    found = read_tagged_text(folder / "eng.train")
    return [found.words, found.tags]


def plain_tagged(content: bytes) -> Any:
    words: list[list[str]] = [[]]
    tags: list[list[str]] = [[]]
    for line in utf8(content).split("\n"):
        fields = line.strip(" \t\r").replace("\t", " ").split(" ")
        if fields == [""] or fields[0] == "-DOCSTART-":
            words.append([])
            tags.append([])
        else:
            words[-1].append(fields[0])
            tags[-1].append(fields[-1])
    return [[part for part in parts if part] for parts in (words, tags)]


# ---------------------------------------------------------------------------------------------------------------- JSON


def squad_file() -> dict[str, Any]:
    articles = []
    for number, context in enumerate(sentences(5)):
        answer = {"text": context.split()[2], "answer_start": context.index(context.split()[2])}
        known = {"id": f"q{number}", "question": "What is old?", "answers": [answer], "is_impossible": False}
        unknown = {"id": f"u{number}", "question": "What is new?", "answers": [], "is_impossible": True}
        articles.append({"title": "t", "paragraphs": [{"context": context, "qas": [known, unknown]}]})
    return {"version": "v2.0", "data": articles}


def read_squad(path: Path) -> Any:
    from bert_repro.tasks.squad.questions import read_questions

    return read_questions(path, unanswerable=True).to_dict()


def plain_squad(content: bytes) -> Any:
    columns: dict[str, list[Any]] = {"id": [], "question": [], "context": [], "answers": []}
    for article in json.loads(utf8(content))["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                answers = question.get("answers")
                columns["id"].append(question["id"])
                columns["question"].append(question["question"])
                columns["context"].append(paragraph["context"])
                both = None if answers is None else {k: [a[k] for a in answers] for k in ("text", "answer_start")}
                columns["answers"].append(both)
    if all(answers is None for answers in columns["answers"]):
        del columns["answers"]
    return columns


def make_predictions(world: Any, folder: Path) -> None:
    (folder / "dev.json").write_text(json.dumps(squad_file()))
    ids = [f"{kind}{number}" for number in range(5) for kind in "qu"]
    (folder / "predictions.json").write_text(json.dumps({name: "an answer" for name in ids}))
    (folder / "odds.json").write_text(json.dumps({name: 0.5 for name in ids}))


def read_predictions(folder: Path) -> Any:
    from bert_repro.configs import SquadScoringConfig
    from bert_repro.tasks.squad.questions import read_questions
    from bert_repro.tasks.squad.scoring import score_squad, values_by_id

    files = {name: str(folder / f"{name}.json") for name in ("dev", "predictions", "odds")}
    score_squad(SquadScoringConfig("squad_v2", files["dev"], files["predictions"], files["odds"]))
    dataset = read_questions(folder / "dev.json", unanswerable=True)
    return dict(zip(dataset["id"], values_by_id(folder / "predictions.json", dataset, str, "text"), strict=True))


def plain_predictions(content: bytes) -> Any:
    found = json.loads(utf8(content))
    return {f"{kind}{number}": found[f"{kind}{number}"] for number in range(5) for kind in "qu"}


def make_triviaqa(world: Any, folder: Path) -> None:
    (folder / "evidence/wikipedia").mkdir(parents=True)
    questions = []
    for number, text in enumerate(sentences(4)):
        (folder / f"evidence/wikipedia/Page{number}.txt").write_text(text)
        answer = {"Value": text.split()[1], "Aliases": [text.split()[1], "x"]}
        pages = [{"Filename": f"Page{number}.txt", "Title": "A page"}]
        questions.append({"QuestionId": f"t{number}", "Question": "Which?", "Answer": answer, "EntityPages": pages})
    (folder / "qa.json").write_text(json.dumps({"Data": questions, "Version": 1.0}))


def read_triviaqa(folder: Path) -> Any:
    from bert_repro.tasks.squad.triviaqa import convert_triviaqa

    output = folder / "out.json"
    convert_triviaqa(
        TriviaqaConfig(str(folder / "qa.json"), str(folder / "evidence"), str(output), overwrite_output_file=True)
    )
    found = read_squad(output)
    assert all(answers["text"] for answers in found["answers"]), "every question has an answer"
    return sorted(zip(found["id"], found["context"], found["question"], strict=True))


def plain_triviaqa(content: bytes) -> Any:
    texts = {f"Page{number}.txt": text for number, text in enumerate(sentences(4))}
    found = []
    for question in json.loads(utf8(content))["Data"]:
        answer = question["Answer"]
        names = [answer["Value"], *answer.get("Aliases", []), *answer.get("HumanAnswers", [])]
        for page in question.get("EntityPages", []):
            text = texts.get(page.get("Filename"))
            identity = f"{question['QuestionId']}--{page.get('Filename')}"
            if text and any(name.strip() and name.lower() in text.lower() for name in names):
                found.append((identity, text, question["Question"]))
    return sorted(set(found))


# --------------------------------------------------------------------------------------------------------- corpus files


def make_corpus_text(world: Any, folder: Path, name: str) -> None:
    documents = ["\n".join(sentences(number)) for number in (3, 4, 5)]
    lines = "".join(json.dumps({"text": text, "title": "A title"}) + "\n" for text in documents)
    match name.split(".", 1)[1]:
        case "txt":
            (folder / name).write_text("\n\n".join(documents) + "\n")
        case "txt.gz":
            (folder / name).write_bytes(gzip.compress("\n\n".join(documents).encode(), mtime=0))
        case "jsonl":
            (folder / name).write_text(lines)
        case "jsonl.xz":
            (folder / name).write_bytes(lzma.compress(lines.encode()))
        case "parquet":
            import pyarrow as pa
            import pyarrow.parquet as pq

            pq.write_table(pa.table({"text": documents, "title": ["A title"] * 3, "id": [1, 2, 3]}), folder / name)


def read_corpus_text(path: Path) -> Any:
    return [document.text for document in read_documents(find_sources([str(path)])[0], max_bytes=90_000)]


def plain_text(content: bytes) -> Any:
    documents: list[list[str]] = [[]]
    for line in utf8(content).split("\n"):
        if line.strip():
            documents[-1].append(line.rstrip("\r"))
        else:
            documents.append([])
    return ["\n".join(lines) for lines in documents if lines]


def plain_text_rows(content: bytes) -> Any:
    rows = [json.loads(line) for line in utf8(content).split("\n") if line.strip()]
    return [row["text"] for row in rows if row["text"].strip()]


def plain_parquet(content: bytes) -> Any:
    import pyarrow.parquet as pq

    return [text for text in pq.read_table(io.BytesIO(content))["text"].to_pylist() if text.strip()]


def read_prepared(folder: Path) -> Any:
    corpus = PreparedCorpus.load(folder)
    arrays = (corpus.document_starts, corpus.sentence_starts, corpus.document_sentences, corpus.document_keys)
    starts, ends = corpus.document_starts[:-1], corpus.document_starts[1:]
    return [corpus.gather(starts, ends - starts).tolist(), [array.tolist() for array in arrays], corpus.manifest]


def make_prepared(world: Any, folder: Path) -> None:
    shutil.copytree(world.corpus, folder, dirs_exist_ok=True)


def corpus_of_shards(world: Any, folder: Path, **options: Any) -> None:
    from bert_repro.configs import CorpusConfig
    from bert_repro.corpus.prepare import prepare_corpus

    place = {"input_files": (str(world.text),), "output_dir": str(folder / "corpus")}
    prepare_corpus(CorpusConfig(tokenizer=str(world.tokenizer), **place, **options))


def make_shards(world: Any, folder: Path) -> None:
    ORIGINAL["world"] = world
    for shard in ("1/2", "2/2"):
        corpus_of_shards(world, folder, shard=shard)


def read_shards(folder: Path) -> Any:
    """Joins a copy of them."""
    joined = folder.with_name("joined")
    shutil.rmtree(joined, ignore_errors=True)
    shutil.copytree(folder, joined)
    corpus_of_shards(ORIGINAL["world"], joined, join=True)
    return read_prepared(joined / "corpus")


def make_sample_index(world: Any, folder: Path) -> None:
    from bert_repro.pretraining.sample_index import _write_index
    from bert_repro.pretraining.segment_pairs import ROW

    rows = np.zeros(20, dtype=ROW)
    rows.view(np.uint8)[:] = np.arange(rows.nbytes) % 251
    _write_index(folder / "phase0.index", {"format_version": 1}, iter([rows]))


def read_sample_index(folder: Path) -> Any:
    from bert_repro.pretraining.sample_index import SampleIndex

    index = SampleIndex.open(folder / "phase0.index")
    index.verify()
    return index.read(np.arange(len(index))).tobytes()


def read_tokenized(folder: Path) -> Any:
    import datasets

    from bert_repro.corpus.tokenizer import load_tokenizer
    from bert_repro.finetuning.data import encode
    from bert_repro.tasks import get_task

    datasets.config.HF_DATASETS_CACHE = folder
    rows = datasets.Dataset.from_dict({"sentence": sentences(4), "label": [0, 1] * 2, "idx": [*range(4)]})
    return encode(get_task("sst2"), rows, load_tokenizer(folder / "tokenizer"), 16).to_dict()


def make_tokenized(world: Any, folder: Path) -> None:
    shutil.copytree(world.tokenizer, folder / "tokenizer")
    read_tokenized(folder)


def read_states(folder: Path) -> Any:
    """Reads the hidden states of a frozen encoder."""
    import datasets
    import torch

    from bert_repro import BertReproConfig, BertReproModel
    from bert_repro.configs import NerConfig
    from bert_repro.finetuning.feature_based import FeatureCache

    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    encoder = BertReproModel(BertReproConfig(vocab_size=20, token_features="last", **sizes))
    config = NerConfig(
        model_name_or_path="m", do_train=True, feature_based="last", feature_cache_dir=str(folder), output_dir="o"
    )
    ids = [[2, 7, 3], [2, 9, 11, 3]]
    columns = {"input_ids": ids, "token_type_ids": [[0] * len(row) for row in ids], "length": [3, 4]}
    cache = FeatureCache(config, encoder, torch.device("cpu"))
    return cache.load(datasets.Dataset.from_dict(columns)).values.tolist()


# -------------------------------------------------------------------------------------------------------------- models


def make_model(world: Any, folder: Path, **options: Any) -> None:
    import torch
    import transformers

    import bert_repro

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    sizes |= {"max_position_embeddings": 32}
    tokenizer = transformers.AutoTokenizer.from_pretrained(world.tokenizer)
    model = bert_repro.BertReproForMaskedLM(bert_repro.BertReproConfig(vocab_size=len(tokenizer), **sizes))
    model.save_pretrained(folder, **options)
    tokenizer.save_pretrained(folder)


def read_model(folder: Path) -> Any:
    """Loads it as fine-tuning does: a new head may be added, nothing of the encoder may be missing."""
    from bert_repro import BertReproForSequenceClassification
    from bert_repro.training.model_loading import load_model

    config = GlueConfig(task_name="sst2", do_train=True, model_name_or_path=str(folder), output_dir="o")
    model = load_model(BertReproForSequenceClassification, config, may_add_weights=True, num_labels=2)
    weights = {
        name: value for name, value in model.state_dict().items() if name.startswith("bert.") and "pooler" not in name
    }
    settings = {name: getattr(model.config, name) for name in CONFIG_FIELDS}
    return settings, {name: value.numpy().tobytes() for name, value in weights.items()}


CONFIG_FIELDS = (
    "hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob", "hidden_size", "num_hidden_layers",
    "num_attention_heads", "intermediate_size", "vocab_size", "max_position_embeddings", "type_vocab_size",
    "layer_norm_eps", "pad_token_id", "is_decoder", "pool_token",
)  # fmt: skip


def plain_config(content: bytes) -> Any:
    from bert_repro import BertReproConfig

    found = json.loads(utf8(content))
    defaults = BertReproConfig().to_dict()
    settings = {name: found.get(name, defaults.get(name)) for name in CONFIG_FIELDS}
    if settings["is_decoder"]:
        settings["pool_token"] = "last"
    return settings, ORIGINAL["model"][1]


def plain_weights(content: bytes) -> Any:
    size = struct.unpack("<Q", content[:8])[0]
    weights = {}
    for name, entry in json.loads(content[8 : 8 + size]).items():
        if name.startswith("bert."):
            begin, end = entry["data_offsets"]
            weights[name] = content[8 + size + begin : 8 + size + end]
            assert entry["dtype"] == "F32"
            assert np.isfinite(np.frombuffer(weights[name], np.float32)).all()
    assert weights.keys() == ORIGINAL["model"][1].keys()
    return ORIGINAL["model"][0], weights


def make_tokenizer(world: Any, folder: Path) -> None:
    shutil.copytree(world.tokenizer, folder, dirs_exist_ok=True)
    (folder / "vocab.txt").unlink(missing_ok=True)


TEXTS = [*sentences(3), "unseen élan 123 !?"]


def read_tokenizer(folder: Path) -> Any:
    from bert_repro.corpus.tokenizer import load_tokenizer
    from bert_repro.tasks.encoding import special_ids, token_ids

    tokenizer = load_tokenizer(folder)
    ids = [list(map(int, row)) for row in token_ids(tokenizer, TEXTS)]
    return [ids, list(map(int, special_ids(tokenizer))), tokenizer.get_vocab()]


def plain_tokenizer(content: bytes) -> Any:
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_str(content.decode())
    ids = [encoded.ids for encoded in tokenizer.encode_batch(TEXTS, add_special_tokens=False)]
    return [ids, [tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]")], tokenizer.get_vocab()]


def make_vocabulary(world: Any, folder: Path) -> None:
    shutil.copy(world.tokenizer / "vocab.txt", folder / "vocab.txt")


def read_vocabulary(folder: Path) -> Any:
    from bert_repro.corpus.tokenizer import load_tokenizer

    return load_tokenizer(folder).get_vocab()


def plain_vocabulary(content: bytes) -> Any:
    lines = [line.rstrip("\r") for line in content.decode().removesuffix("\n").split("\n")]
    return {token: number for number, token in enumerate(lines)}


# ---------------------------------------------------------------------------------------------------------------- runs


def make_checkpoint(world: Any, folder: Path) -> None:
    from toy import ToyConfig, make_trainer

    make_trainer(ToyConfig(output_dir=str(folder), max_steps=2, save_steps=2)).train()


def read_checkpoint(folder: Path) -> Any:
    import safetensors.numpy

    from bert_repro.training import checkpoint

    found = checkpoint.find(folder, str(folder / "checkpoints/step-2"))
    weights = safetensors.numpy.load_file(found / "model.safetensors")
    return checkpoint.read_state(found), {name: value.tobytes() for name, value in weights.items()}


RESULTS = {
    "task": "sst2", "split": "validation", "metrics": {"accuracy": 0.5}, "rows_scored": 4, "seed": 1,
    "splits": {"validation": {"metrics": {"accuracy": 0.5}, "rows_scored": 4, "files": ["predictions.validation.tsv"]}},
    "settings": {"learning_rate": 1e-4, "output_dir": "runs/x", "hub_token": None}, "command": "python run_glue.py",
    "model": {"class": "BertReproForSequenceClassification", "labels": ["negative", "positive"], "parameters": 10},
    "train": {"steps": 5, "batch": 2, "phases": [{"steps": 5, "batch": 2}]}, "data": {"dataset": "nyu-mll/glue"},
    "study": {"table_entries": [], "size_preset": "trial"}, "versions": {"torch": "2.13"}, "degenerate": False,
    "sweep": {"runs_done": 1, "split": "validation", "metric": "accuracy", "configurations": [{
        "learning_rate": 1e-4, "batch": 2, "epochs": 3.0, "steps": None, "runs": 1, "degenerate": 0, "not_finite": 0,
        "splits": {"validation": {"accuracy": {"mean": 0.5, "standard_deviation": None, "best": 0.5}}}}]},
}  # fmt: skip


def make_results(world: Any, folder: Path) -> None:
    (folder / "results.json").write_text(json.dumps(RESULTS))


def read_run_results(folder: Path) -> Any:
    """Reads them for the report and for a model card, which is made."""
    from bert_repro.configs import CardConfig
    from bert_repro.hub.card import write_card
    from bert_repro.reproduction.collect import collect
    from bert_repro.tasks.glue.leaderboard_zip import find_runs

    (found,) = collect(folder)
    find_runs([folder])
    write_card(CardConfig(folder=str(folder), output_file=str(folder.parent / "card.md")))
    return found.results


def plain_object(content: bytes) -> Any:
    return json.loads(utf8(content))


def make_log(world: Any, folder: Path) -> None:
    rows = [
        {"step": n, "loss": 3.0 / n, "learning_rate": 1e-4, "tokens": 100 * n, "seconds": n, "eval_loss": 2.0}
        for n in range(1, 9)
    ]
    (folder / "train_log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_log(folder: Path) -> Any:
    from bert_repro.training import training_log
    from bert_repro.training.performance import training_totals

    rows = training_log.read(folder / "train_log.jsonl")
    training_totals(rows, {"train": {"steps": 8}, "model": {}, "settings": {}})
    return rows


def plain_log(content: bytes) -> Any:
    return [json.loads(utf8(line)) for line in content.split(b"\n")[:-1]]  # the last one is empty, or cut off


def make_zip(world: Any, folder: Path) -> None:
    rows = "".join(f"{row}\tentailment\n" for row in range(1104))
    wnli = "".join(f"{row}\t1\n" for row in range(146))
    with zipfile.ZipFile(folder / "glue.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in (("AX.tsv", rows), ("WNLI.tsv", wnli)):
            archive.writestr(zipfile.ZipInfo(name), f"index\tprediction\n{text}")


def read_zip_file(folder: Path) -> Any:
    from bert_repro.tasks.glue.leaderboard_zip import find_faults, read_zip

    contents, faults = read_zip(folder / "glue.zip")
    faults += find_faults(contents)
    for fault in faults:
        if not fault.isprintable() or len(fault) > 400:
            raise AssertionError(f"a fault that cannot be shown: {fault[:200]!r}")
    if not any(fault.startswith(("AX", "WNLI")) for fault in faults):
        return contents
    raise UserError("listed")


def plain_zip(content: bytes) -> Any:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) if name in ("AX.tsv", "WNLI.tsv") else b"" for name in archive.namelist()}


def make_pairs(world: Any, folder: Path) -> None:
    good, bad = sentences(8), sentences(9)
    rows = [
        {"sentence_good": one, "sentence_bad": other, "UID": "agreement", "field": "syntax"}
        for one, other in zip(good, bad[:8], strict=True)
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_minimal_pairs(folder: Path) -> Any:
    from bert_repro.inference.minimal_pairs import read_pairs

    return [[pair.good, pair.bad] for pair in read_pairs(folder / "pairs.jsonl")]


def plain_pairs(content: bytes) -> Any:
    rows = [json.loads(line) for line in lines_of(content) if line.strip()]
    values = [[row[name] for name in ("sentence_good", "sentence_bad")] for row in rows]
    return [[value if isinstance(value, str) else json.dumps(value) for value in row] for row in values]


def make_texts(world: Any, folder: Path) -> None:
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in sentences(8)))


def read_plain_texts(folder: Path) -> Any:
    from bert_repro.inference.feature_extraction import read_texts

    return list(read_texts(folder / "texts.jsonl", "text"))


def plain_texts(content: bytes) -> Any:
    return [json.loads(line)["text"] for line in lines_of(content) if line.strip()]


def make_task_predictions(world: Any, folder: Path) -> None:
    make_glue(world, folder)
    rows = [f"{number}\tpositive\t{text}" for number, text in enumerate(sentences(8))]
    (folder / "predictions.train.tsv").write_text("\n".join(["index\tprediction\tsentence", *rows]) + "\n")


def read_task_predictions(folder: Path) -> Any:
    from bert_repro.tasks.glue.glue_tasks import SST2

    dataset = SST2.load(folder, ["train"])["train"]
    return {name: list(map(int, found)) for name, found in SST2.example_scores("train", dataset, folder).items()}


def plain_task_predictions(content: bytes) -> Any:
    names, *rows = (line.split("\t") for line in lines_of(content))
    labels = ["positive" if number % 2 else "negative" for number in range(8)]
    assert [row[names.index("index")] for row in rows] == [str(number) for number in range(len(rows))]
    found = [row[names.index("prediction")] for row in rows]
    return {"accuracy": [int(one == other) for one, other in zip(found, labels, strict=False)]}


# ------------------------------------------------------------------------------------------------------------- settings

YAML = """# a run
learning_rate: 1e-4
num_train_epochs: 3
do_train: true
per_device_train_batch_size: 16
max_seq_length: 128
train_file: data/train.csv
text_columns: [premise, hypothesis]
class_weights: balanced
seed: 7
lora_target: null
"""


def make_yaml(world: Any, folder: Path) -> None:
    (folder / "run.yaml").write_text(YAML.replace("lora_target: null\n", ""))


def read_settings(folder: Path) -> Any:
    from bert_repro.cli.arguments import parse

    config = parse(GlueConfig, ["--config", str(folder / "run.yaml"), "--model_name_or_path", "m", "--output_dir", "o"])
    return dataclasses.asdict(config)


def plain_yaml(content: bytes) -> Any:
    import yaml

    given = yaml.safe_load(utf8(content)) or {}
    values = {}
    for item in dataclasses.fields(GlueConfig):
        value = given.pop(item.name, item.default)
        if isinstance(item.default, tuple):
            value = tuple(value) if isinstance(value, list | tuple) else (value,)
        elif "float" in str(item.type):
            value = None if value is None else float(value)
        values[item.name] = value
    if not any(values[name] for name in ("do_train", "do_eval", "do_predict")):  # the files then say what is done
        values["do_train"] = values["train_file"] is not None
    return {**values, **given, "model_name_or_path": "m", "output_dir": "o"}


KINDS: dict[str, Kind] = {
    "GLUE TSV": Kind(make_glue, "SST-2/train.tsv", read_glue, mutations.text, plain_glue),
    "custom CSV": Kind(
        lambda world, folder: make_custom(world, folder, "a.csv"), "a.csv", lambda f: read_custom(f / "a.csv"),
        mutations.text, plain_csv,
    ),
    "custom JSON lines": Kind(
        lambda world, folder: make_custom(world, folder, "a.jsonl"), "a.jsonl", lambda f: read_custom(f / "a.jsonl"),
        mutations.json_lines, plain_json_lines,
    ),
    "SWAG CSV": Kind(make_swag, "train.csv", read_swag, mutations.text, plain_swag),
    "CoNLL text": Kind(make_tagged, "eng.train", read_tagged, mutations.text, plain_tagged),
    "SQuAD JSON": Kind(
        lambda world, folder: (folder / "dev.json").write_text(json.dumps(squad_file())), "dev.json",
        lambda f: read_squad(f / "dev.json"), mutations.json_file, plain_squad,
    ),
    "SQuAD predictions": Kind(
        make_predictions, "predictions.json", read_predictions, mutations.json_file, plain_predictions
    ),
    "TriviaQA": Kind(make_triviaqa, "qa.json", read_triviaqa, mutations.json_file, plain_triviaqa),
    **{
        f"corpus .{ending}": Kind(
            lambda world, folder, ending=ending: make_corpus_text(world, folder, f"a.{ending}"), f"a.{ending}",
            lambda f, ending=ending: read_corpus_text(f / f"a.{ending}"), mutate, plain,
        )
        for ending, mutate, plain in (
            ("txt", mutations.text, plain_text),
            ("txt.gz", mutations.gzipped(mutations.text), lambda content: plain_text(gzip.decompress(content))),
            ("jsonl", mutations.json_lines, plain_text_rows),
            ("jsonl.xz", mutations.xz(mutations.json_lines), lambda content: plain_text_rows(lzma.decompress(content))),
            ("parquet", mutations.parquet, plain_parquet),
        )
    },
    "prepared corpus": Kind(make_prepared, "**/*", read_prepared, mutations.bytes_of_any_file),
    "shards of a corpus": Kind(make_shards, "*.preparing/*", read_shards, mutations.bytes_of_any_file),
    "manifest of a corpus": Kind(make_prepared, "manifest.json", read_prepared, mutations.json_file),
    "tokenized split": Kind(make_tokenized, "bert_repro/*/*", read_tokenized, mutations.bytes_of_any_file),
    "hidden states": Kind(lambda world, folder: read_states(folder), "*/*", read_states, mutations.bytes_of_any_file),
    "sample index": Kind(make_sample_index, "phase0.index", read_sample_index, mutations.bytes_of_any_file),
    "tokenizer.json": Kind(make_tokenizer, "tokenizer.json", read_tokenizer, mutations.json_file, plain_tokenizer),
    "vocab.txt": Kind(make_vocabulary, "vocab.txt", read_vocabulary, mutations.text, plain_vocabulary),
    "config.json": Kind(make_model, "config.json", read_model, mutations.json_file, plain_config),
    "model.safetensors": Kind(make_model, "model.safetensors", read_model, mutations.safetensors, plain_weights),
    "index of shards": Kind(
        lambda world, folder: make_model(world, folder, max_shard_size="10KB"), "model.safetensors.index.json",
        read_model, mutations.json_file,
    ),
    "checkpoint": Kind(make_checkpoint, "checkpoints/step-2/**/*", read_checkpoint, mutations.bytes_of_any_file),
    "manifest of a checkpoint": Kind(
        make_checkpoint, "checkpoints/step-2/manifest.json", read_checkpoint, mutations.json_file
    ),
    "results.json": Kind(make_results, "results.json", read_run_results, mutations.json_file, plain_object),
    "train_log.jsonl": Kind(make_log, "train_log.jsonl", read_log, mutations.json_lines, plain_log),
    "predictions of a task": Kind(
        make_task_predictions, "predictions.train.tsv", read_task_predictions, mutations.text, plain_task_predictions
    ),
    "leaderboard zip": Kind(make_zip, "glue.zip", read_zip_file, mutations.zipped, plain_zip),
    "minimal pairs": Kind(make_pairs, "pairs.jsonl", read_minimal_pairs, mutations.json_lines, plain_pairs),
    "texts": Kind(make_texts, "texts.jsonl", read_plain_texts, mutations.json_lines, plain_texts),
    "YAML": Kind(make_yaml, "run.yaml", read_settings, mutations.text, plain_yaml),
}  # fmt: skip
