"""SQuAD v1.1 and v2.0: the answer to a question is a span of a passage (paper 4.2, 4.3; original run_squad.py).

A question over a long passage is one example with several features, one for each window; `squad_windows` cuts the
passages, `squad_scoring` turns scores into answers and scores those.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from bert_repro.configs import FinetuningConfig, SquadConfig
from bert_repro.errors import UserError
from bert_repro.tasks import squad_scoring as scoring
from bert_repro.tasks.base import (
    Batch,
    Columns,
    ExampleScores,
    Feature,
    Outputs,
    Predictions,
    Splits,
    Task,
    join,
    require_first_rows,
    special_ids,
    token_ids,
    write_json_lines,
)
from bert_repro.tasks.data import hold_out, read_file, short_row
from bert_repro.tasks.squad_scoring import Decoder, OriginalText, text_by_offsets
from bert_repro.tasks.squad_windows import (
    NO_ANSWER,
    UNFOUND,
    Passage,
    first_answer_spans,
    passages_of,
    questions_of,
    shared_passages,
    target,
    window_spans,
)
from bert_repro.utils.files import write_text
from bert_repro.utils.readers import read_json

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger("bert_repro")

_F1_DIGITS = 5  # of an example's F1; what is resampled needs no more
_DEFAULTS = SquadConfig(model_name_or_path="-", do_eval=True)


@dataclass(frozen=True, kw_only=True)
class SquadTask(Task):
    """Span of a passage that answers a question.

    A split has the columns `id`, `question`, `context` and, if labelled, `answers` (`text`, `answer_start`).
    Training takes the first answer of a question that has several.

    A feature is one window, with `window` (0 for the first of its question), `window_start` (its first piece of the
    passage), `passage_at` (the position of that piece in the input) and `labels` (start and end position).

    Args:
        files: the official file of each split.
        unanswerable: whether a question may have no answer (v2.0).
        settings: of the run.
        null_score_diff_threshold: v2.0: no answer where the null score exceeds the best one's by more; None: as 0.
        tokenizer: of the model; `prepared` puts it in.
    """

    head: str = "BertReproForQuestionAnswering"
    metrics: tuple[str, ...] = ("exact_match", "f1")
    primary_metric: str = "f1"
    data_license: str | None = "CC BY-SA 4.0"
    files: Mapping[str, str]
    unanswerable: bool
    settings: SquadConfig = _DEFAULTS
    null_score_diff_threshold: float | None = None
    tokenizer: Any = field(default=None, repr=False)
    reference_column: ClassVar[str] = "answers"
    official_folder = (
        "the folder that holds the official JSON files; or name files with --train_file, --validation_file"
    )

    @property
    def columns_of_text(self) -> tuple[str, ...]:
        return ("question", "context")

    def prepared(self, config: FinetuningConfig, tokenizer: "PreTrainedTokenizerBase") -> "SquadTask":
        assert isinstance(config, SquadConfig), "run_squad makes one"
        threshold = config.null_score_diff_threshold
        if threshold is not None and not self.unanswerable:
            raise UserError(
                f"--null_score_diff_threshold is {threshold:g}, but every question of task {self.name} has an answer; "
                "leave it out, or use --task_name squad_v2"
            )
        if self.unanswerable and config.ensemble_with and threshold is None and not config.do_eval:
            raise UserError(
                "--do_predict with --ensemble_with: no threshold is known for the mean of several models; add "
                "--do_eval, which finds it on the dev set, or give --null_score_diff_threshold"
            )
        return replace(self, settings=config, null_score_diff_threshold=threshold, tokenizer=tokenizer)

    def restored(self, model_config: Any) -> "SquadTask":
        """Returns the task with the model's own threshold, unless the run names one or is an ensemble's: a member's is
        about its own scores, not about the mean of several models' scores."""
        if not self.unanswerable or self.null_score_diff_threshold is not None or self.settings.ensemble_with:
            return self
        return replace(self, null_score_diff_threshold=model_config.null_score_diff_threshold)

    def tuned(self, predictions: Predictions, dataset: "datasets.Dataset") -> "SquadTask":
        """Returns the task with the threshold that is best for F1 (paper 4.3), unless the run names one."""
        if not self.unanswerable or self.null_score_diff_threshold is not None:
            return self
        questions, odds = self._questions(predictions, dataset)
        best_f1, threshold = scoring.best_threshold(questions.f1, questions, odds)
        if best_f1 == float((~questions.has_answer).mean()):
            # Best is to answer nothing; the official script then names 0, at which something may be answered.
            threshold = float(odds.min()) - 1.0
        logger.info("%s: F1 is best, %.4f, at null_score_diff_threshold %.4f", self.name, best_f1, threshold)
        return replace(self, null_score_diff_threshold=threshold)

    def model_settings(self) -> dict[str, Any]:
        """Returns how the loss is taken, and the threshold; None for v1.1, to drop that of an earlier training."""
        threshold = self.null_score_diff_threshold if self.unanswerable else None
        return {"qa_loss": self.settings.qa_loss, "null_score_diff_threshold": threshold}

    def official_file(self, data_dir: Path, split: str) -> Path:
        return data_dir / self.files[split]

    def read_official(self, split: str, path: Path) -> "datasets.Dataset":
        return questions_of(read_file(path), str(path), unanswerable=self.unanswerable)

    def encoding_settings(self) -> dict[str, Any]:
        return {"max_query_length": self.settings.max_query_length, "doc_stride": self.settings.doc_stride}

    def encode_batch(self, examples: Columns, tokenizer: "PreTrainedTokenizerBase", max_seq_length: int) -> Columns:
        """Makes [CLS] question [SEP] window [SEP] for every window of every question."""
        cls, sep = special_ids(tokenizer)
        questions = token_ids(tokenizer, examples["question"])
        passages = shared_passages(tokenizer, examples["context"])
        spans = first_answer_spans(examples["answers"], tokenizer, passages) if "answers" in examples else None
        columns = ("input_ids", "token_type_ids", "length", "truncated", "window", "window_start", "passage_at")
        features: Columns = {name: [] for name in columns}
        if spans is not None:
            features["labels"] = []
        most = self.settings.max_query_length
        for row, (question, passage) in enumerate(zip(questions, passages, strict=True)):
            kept = question[:most]
            passage_at = len(kept) + 2
            places = window_spans(len(passage.ids), max_seq_length - passage_at - 1, self.settings.doc_stride)
            for number, (start, size) in enumerate(places):
                ids, segments = join(cls, sep, kept, passage.ids[start : start + size].tolist())
                values = (ids, segments, len(ids), len(question) > most, number, start, passage_at)
                for name, value in zip(columns, values, strict=True):
                    features[name].append(value)
                if spans is not None:
                    span = spans[row]
                    features["labels"].append(UNFOUND if span == UNFOUND else target(span, (start, size), passage_at))
        return features

    def training_features(self, features: "datasets.Dataset") -> "datasets.Dataset":
        """Leaves out questions whose answer is not where they say, and windows without a target.

        The latter only where the softmax is over the passage alone, which gives [CLS] no place.
        """
        if "labels" not in features.column_names:
            raise UserError(f"--do_train: the training set of {self.name} has no answers; name a labelled file")
        starts = np.asarray(features["labels"][:])[:, 0]
        kept = starts != UNFOUND[0]
        lost = int((np.asarray(features["window"][:])[~kept] == 0).sum())
        if lost:
            logger.warning("%s: dropped %d training questions whose answer is not in its place", self.name, lost)
        if self.settings.qa_softmax == "paragraph" and not self.unanswerable:
            kept &= starts != NO_ANSWER[0]
        if not kept.any():
            raise UserError(
                f"--do_train: the training set of {self.name} has no answer where it says; correct its file"
            )
        return features if kept.all() else features.select(np.flatnonzero(kept))

    def epoch_size(self, features: "datasets.Dataset") -> int:
        """Returns the number of questions: the original implementation makes its steps from them, not from windows."""
        return 1 + int((np.diff(features["window"][:]) <= 0).sum())

    def collate(self, features: Sequence[Feature], **layout: Any) -> Batch:
        """See `Task.collate`; `start_positions`, `end_positions` and, where the softmax needs it, `answer_mask`."""
        import torch

        softmax, training = self.settings.qa_softmax, "labels" in features[0]
        if training and softmax == "padded":
            layout["pad_to_multiple_of"] = self.settings.max_seq_length
        batch = super().collate(features, **layout)
        if not training:
            return batch
        batch["start_positions"], batch["end_positions"] = batch.pop("labels").unbind(dim=1)
        if softmax == "paragraph":
            rows = [self._paragraph_mask(feature) for feature in features]
            if layout["packing"]:
                batch["answer_mask"] = torch.from_numpy(np.concatenate(rows)[None])
            else:
                width = batch["input_ids"].shape[1]
                batch["answer_mask"] = torch.from_numpy(np.stack([np.pad(row, (0, width - len(row))) for row in rows]))
        elif softmax == "sequence" and not layout["packing"]:
            batch["answer_mask"] = batch["attention_mask"].bool()
        return batch

    def _paragraph_mask(self, feature: Feature) -> npt.NDArray[np.bool_]:
        mask = np.zeros(feature["length"], dtype=bool)
        mask[feature["passage_at"] : -1] = True
        mask[0] = self.unanswerable
        return mask

    def postprocess(self, dataset: "datasets.Dataset", features: "datasets.Dataset", outputs: Outputs) -> Predictions:
        """Returns the best text of each question, for v2.0 before the threshold, with its `null_odds` and `nbest` list.

        Of the outputs only those of one question are in memory.
        """
        names = ("window", "window_start", "passage_at")
        number, starts, passage_at = (np.asarray(features[name][:]) for name in names)
        firsts = np.append(np.flatnonzero(number == 0), len(number))
        text_of = OriginalText(self.tokenizer) if self.settings.answer_text == "original" else text_by_offsets
        decoder, coming = self.decoder(text_of, nullable=self.unanswerable), iter(outputs)
        texts, odds, nbest = [], [], []
        for row, passage in enumerate(passages_of(self.tokenizer, dataset)):
            rows = slice(firsts[row], firsts[row + 1])
            scores = [values.astype(np.float64) for values in islice(coming, rows.stop - rows.start)]
            for values in scores:
                self.require_finite(values)
            at = int(passage_at[rows.start])
            places = [
                (start, len(values) - at - 1) for start, values in zip(starts[rows].tolist(), scores, strict=True)
            ]
            answer = decoder.answer(passage, places, scores, at)
            texts.append(answer.text)
            odds.append(answer.null_odds)
            nbest.append(answer.best)
        return {"prediction": texts, "null_odds": odds, "nbest": nbest}

    def answers(self, predictions: Predictions) -> list[str]:
        """Returns what the model answers: the best text or, in v2.0 beyond the threshold, "" for no answer."""
        if not self.unanswerable:
            return list(predictions["prediction"])
        pairs = zip(predictions["prediction"], predictions["null_odds"], strict=True)
        return ["" if odds > (self.null_score_diff_threshold or 0.0) else text for text, odds in pairs]

    def score(self, predictions: Predictions, dataset: "datasets.Dataset") -> dict[str, float]:
        """Computes `exact_match` and `f1`; for v2.0 those at the threshold, at 0 and at the best thresholds."""
        questions, odds = self._questions(predictions, dataset)
        if not self.unanswerable:
            return questions.summary()
        return scoring.scores_at_threshold(questions, odds, self.null_score_diff_threshold or 0.0)

    def is_degenerate(self, predictions: Predictions, dataset: "datasets.Dataset") -> bool:
        """See `Task.is_degenerate`; by the answers after the threshold, so that none at all (v2.0) counts."""
        return len(dataset) > 1 and len(set(self.answers(predictions))) == 1

    def example_scores(self, split: str, dataset: "datasets.Dataset", run_folder: Path) -> ExampleScores:
        """See `Task.example_scores`; exact match and F1 of every question."""
        path = run_folder / _file_name("predictions", split)
        texts = read_json(path)
        require_first_rows(path, list(texts), list(dataset["id"]))
        kept = dataset.select(range(len(texts)))
        right = scoring.answer_texts(kept)
        found = scoring.score_questions([texts[name] for name in kept["id"]], right, unanswerable=self.unanswerable)
        return {"exact_match": found.exact_match.astype(int).tolist(), "f1": found.f1.round(_F1_DIGITS).tolist()}

    def write_predictions(
        self, directory: str | Path, split: str, dataset: "datasets.Dataset", predictions: Predictions
    ) -> list[Path]:
        """Writes predictions.json, nbest_predictions.json and, for v2.0, null_odds.json, as the official scripts take
        them (predictions.SPLIT.json for other splits than `validation`), and predictions.SPLIT.jsonl, a question with
        its passage and answer on each line."""
        folder, ids = Path(directory), dataset["id"]
        contents: dict[str, Any] = {"predictions": self.answers(predictions), "nbest_predictions": predictions["nbest"]}
        if self.unanswerable:
            contents["null_odds"] = predictions["null_odds"]
        for name, values in contents.items():
            text = json.dumps(dict(zip(ids, values, strict=True)), indent=1, ensure_ascii=False, allow_nan=False)
            write_text(folder / _file_name(name, split), text + "\n")
        written = [*(folder / _file_name(name, split) for name in contents), folder / f"predictions.{split}.jsonl"]
        write_json_lines(written[-1], self.records(dataset, predictions))
        return written

    def records(self, dataset: "datasets.Dataset", predictions: Predictions) -> Iterator[dict[str, Any]]:
        """See `Task.records`; the label is the list of right answers, empty for none; "" predicts no answer; the
        probability is that among the n best."""
        labelled = self.is_labelled(dataset)
        for example, text, best in zip(dataset, self.answers(predictions), predictions["nbest"], strict=True):
            record = {name: example[name] for name in ("id", "question", "context")}
            if labelled:
                record["label"] = list(dict.fromkeys(example["answers"]["text"]))
            shares = (entry["probability"] for entry in best if entry["text"] == text)
            yield {**record, "prediction": text, "probability": round(next(shares, 0.0), 6)}

    def example(self, dataset: "datasets.Dataset | None") -> dict[str, Any] | None:
        """See `Task.example`; a training question with a short passage. SQuAD's license allows it."""
        return short_row(dataset, {"text": "question", "context": "context"})

    def _questions(
        self, predictions: Predictions, dataset: "datasets.Dataset"
    ) -> tuple[scoring.QuestionScores, npt.NDArray[np.float64]]:
        right = scoring.answer_texts(dataset)
        questions = scoring.score_questions(predictions["prediction"], right, unanswerable=self.unanswerable)
        return questions, np.asarray(predictions["null_odds"], dtype=np.float64)

    def decoder(self, text_of: Callable[[Passage, int, int], str], *, nullable: bool) -> Decoder:
        """Returns what makes answers of scores by the settings of the run."""
        settings = self.settings
        exact = settings.decoding == "exact"
        return Decoder(exact, settings.n_best_size, settings.max_answer_length, nullable, text_of)


def _file_name(name: str, split: str) -> str:
    return f"{name}.json" if split == "validation" else f"{name}.{split}.json"


SQUAD = SquadTask(
    name="squad",
    title="SQuAD v1.1",
    files={"train": "train-v1.1.json", "validation": "dev-v1.1.json", "test": "test-v1.1.json"},
    hub=("rajpurkar/squad", None, None),
    split_rows={"train": 87_599, "validation": 10_570},
    unanswerable=False,
)

SQUAD_V2 = SquadTask(
    name="squad_v2",
    title="SQuAD v2.0",
    files={"train": "train-v2.0.json", "validation": "dev-v2.0.json", "test": "test-v2.0.json"},
    hub=("rajpurkar/squad_v2", None, None),
    split_rows={"train": 130_319, "validation": 11_873},
    unanswerable=True,
    paper_batch=48,
    paper_epochs=2.0,
)

SQUAD_TASKS = (SQUAD, SQUAD_V2)


def configured_squad(config: SquadConfig, rows: Splits, names: Mapping[str, str]) -> SquadTask | None:
    """Makes the task of a run, with the user's questions where there are some.

    Args:
        config: `task_name`; default: what the data or the finished model say.
        rows: the user's questions, by split.
        names: what messages call them.

    Returns:
        The task; None where nothing says which of the two it is.
    """
    from bert_repro.models.loading import load_config

    task = next((task for task in SQUAD_TASKS if task.name == config.task_name), None)
    questions = {
        split: questions_of(dataset, names[split], unanswerable=task is None or task.unanswerable)
        for split, dataset in rows.items()
    }
    if task is None and questions:
        labelled = [one for split, one in questions.items() if split != "test" and "answers" in one.column_names]
        without = any(not answers["text"] for one in labelled for answers in one["answers"])
        if not without and not config.do_train:  # a model trained for SQuAD v2.0 stores a threshold for no answer
            without = getattr(load_config(config.model_name_or_path), "null_score_diff_threshold", None) is not None
        task = SQUAD_V2 if without else SQUAD
    if task is None:
        return None
    data = hold_out(questions, config, together=["context"])
    title = Path(next(iter(names.values()))).stem if names else task.title
    return replace(task, title=title, data=data, data_names=names)
