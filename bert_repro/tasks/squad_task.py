"""SQuAD v1.1 and v2.0: the answer to a question is a span of a passage (paper 4.2, 4.3; original run_squad.py).

A question about a long passage is one example with several features, one for each window:

    squad_questions   rows in any form become questions
    squad_windows     passages become windows, answers become positions in them
    squad_decoding    scores of positions become answers
    squad_scoring     answers become scores
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from bert_repro.configs import FinetuningConfig, SquadConfig
from bert_repro.errors import UserError, flag
from bert_repro.tasks.base import (
    Batch,
    Columns,
    ExampleScores,
    Feature,
    JsonObject,
    Outputs,
    Predictions,
    Splits,
    Task,
)
from bert_repro.tasks.columns import short_row
from bert_repro.tasks.data import read_file
from bert_repro.tasks.encoding import join, special_ids, token_ids
from bert_repro.tasks.held_out import hold_out
from bert_repro.tasks.prediction_files import require_first_rows, write_json_lines
from bert_repro.tasks.squad_decoding import Decoder, OriginalText, TextOf, text_by_offsets
from bert_repro.tasks.squad_questions import answer_texts, questions_of
from bert_repro.tasks.squad_scoring import (
    Float64Array,
    QuestionScores,
    best_threshold,
    question_metric,
    score_questions,
)
from bert_repro.tasks.squad_windows import (
    NO_ANSWER,
    UNFOUND,
    first_answer_spans,
    passages_of,
    shared_passages,
    target,
    window_spans,
)
from bert_repro.utils.files import write_text
from bert_repro.utils.readers import read_json

if TYPE_CHECKING:
    import datasets
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

logger = logging.getLogger("bert_repro")

_F1_DIGITS = 5  # Digits of an example's F1; resampling needs no more.
_FEATURE_COLUMNS = ("input_ids", "token_type_ids", "length", "truncated", "window", "window_start", "passage_at")


@dataclass(frozen=True)
class SquadSettings:
    """The settings of `SquadConfig` that decide inputs, loss and answers. See there for what they mean."""

    max_seq_length: int = SquadConfig.max_seq_length
    max_query_length: int = SquadConfig.max_query_length
    doc_stride: int = SquadConfig.doc_stride
    qa_loss: str = SquadConfig.qa_loss
    qa_softmax: str = SquadConfig.qa_softmax
    decoding: str = SquadConfig.decoding
    n_best_size: int = SquadConfig.n_best_size
    max_answer_length: int = SquadConfig.max_answer_length
    answer_text: str = SquadConfig.answer_text
    ensemble_with: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: SquadConfig) -> "SquadSettings":
        """Returns the settings of a run."""
        return cls(**{item.name: getattr(config, item.name) for item in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class SquadTask(Task):
    """Question answering: finds the span of a passage that answers a question.

    A split has the columns `id`, `question`, `context` and, if it is labelled, `answers` (`text`, `answer_start`).
    If a question has several answers, the first one is used for training.

    A feature is one window, with `window` (its number; 0 is the first window of a question), `window_start` (its first
    piece of the passage), `passage_at` (the position of that piece in the input) and `labels` (start and end position).

    Args:
        files: the official file of each split.
        unanswerable: whether a question may have no answer (v2.0).
        settings: the settings of the run.
        null_score_diff_threshold: for v2.0, a question has no answer if the score of no answer exceeds that of the best
            answer by more than this; None counts as 0.
        tokenizer: the tokenizer of the model, which `prepared` sets.
    """

    head: str = "BertReproForQuestionAnswering"
    metrics: tuple[str, ...] = ("exact_match", "f1")
    primary_metric: str = "f1"
    data_license: str | None = "CC BY-SA 4.0"
    files: Mapping[str, str]
    unanswerable: bool
    settings: SquadSettings = SquadSettings()
    null_score_diff_threshold: float | None = None
    tokenizer: "PreTrainedTokenizerBase | None" = field(default=None, repr=False)
    reference_column: ClassVar[str] = "answers"
    official_folder = (
        "the folder that holds the official JSON files; or name files with --train_file, --validation_file"
    )

    @property
    def columns_of_text(self) -> tuple[str, ...]:
        return ("question", "context")

    # ------------------------------------------------------------------------------------------------- a run's settings

    def prepared(self, config: FinetuningConfig, tokenizer: "PreTrainedTokenizerBase") -> "SquadTask":
        """Returns the task with the settings and the tokenizer of a run; see `Task.prepared`."""
        if not isinstance(config, SquadConfig):
            raise TypeError(f"a task of questions needs a SquadConfig, not a {type(config).__name__}")
        # A threshold for no answer would change nothing if every question has one.
        threshold = config.null_score_diff_threshold
        if threshold is not None and not self.unanswerable:
            raise UserError(
                f"{flag('null_score_diff_threshold', threshold)}: every question of task {self.name} has an "
                f"answer. Leave it out, or use {flag('task_name', 'squad_v2')}.",
                setting="null_score_diff_threshold",
            )
        if self.unanswerable and config.ensemble_with and threshold is None and not config.do_eval:
            raise UserError(
                f"{flag('do_predict')} with {flag('ensemble_with')}: the threshold for the mean of several models is "
                f"not known. Add {flag('do_eval')}, which finds it on the dev set, or set "
                f"{flag('null_score_diff_threshold')}.",
                setting="null_score_diff_threshold",
            )
        return replace(
            self, settings=SquadSettings.of(config), null_score_diff_threshold=threshold, tokenizer=tokenizer
        )

    def restored(self, model_config: "PretrainedConfig") -> "SquadTask":
        """Returns the task with the threshold that the model stores, unless the run sets one.

        An ensemble does not use it, because the threshold of one model is not that of the mean of several.
        """
        if not self.unanswerable or self.null_score_diff_threshold is not None or self.settings.ensemble_with:
            return self
        # A configuration that was not made here may not have it.
        threshold: float | None = getattr(model_config, "null_score_diff_threshold", None)
        return replace(self, null_score_diff_threshold=threshold)

    def tuned(self, predictions: Predictions, dataset: "datasets.Dataset") -> "SquadTask":
        """Returns the task with the threshold that has the best F1 (paper 4.3), unless the run sets one."""
        if not self.unanswerable or self.null_score_diff_threshold is not None:
            return self
        questions = self._question_scores(predictions, dataset)
        null_odds = _null_odds(predictions)
        best_f1, threshold = best_threshold(questions.f1, questions, null_odds)
        answers_nothing = best_f1 == float((~questions.has_answer).mean())
        if answers_nothing:
            # The official script then returns 0, at which some questions may still be answered.
            threshold = float(null_odds.min()) - 1.0
        logger.info("%s: F1 is best, %.4f, at null_score_diff_threshold %.4f", self.name, best_f1, threshold)
        return replace(self, null_score_diff_threshold=threshold)

    def model_settings(self) -> JsonObject:
        """Returns how the loss is computed, and the threshold. It is None for v1.1, so an earlier one is removed."""
        threshold = self.null_score_diff_threshold if self.unanswerable else None
        return {"qa_loss": self.settings.qa_loss, "null_score_diff_threshold": threshold}

    # --------------------------------------------------------------------------------------------------------- the data

    def official_file(self, data_dir: Path, split: str) -> Path:
        """Returns the path of a split's official file."""
        return data_dir / self.files[split]

    def read_official(self, split: str, path: Path) -> "datasets.Dataset":
        """Reads the official file of a split."""
        del split
        return questions_of(read_file(path), str(path), unanswerable=self.unanswerable)

    def example(self, dataset: "datasets.Dataset | None") -> JsonObject | None:
        """Returns a training question with a short passage for the card, which SQuAD's license allows."""
        return short_row(dataset, {"text": "question", "context": "context"})

    # ------------------------------------------------------------------------------------------------------ model input

    def encoding_settings(self) -> JsonObject:
        """Returns the settings that decide the windows."""
        return {"max_query_length": self.settings.max_query_length, "doc_stride": self.settings.doc_stride}

    def encode_batch(self, examples: Columns, tokenizer: "PreTrainedTokenizerBase", max_seq_length: int) -> Columns:
        """Makes [CLS] question [SEP] window [SEP] for every window of every question."""
        # Passages are tokenized in full; many questions share one.
        cls, sep = special_ids(tokenizer)
        questions = token_ids(tokenizer, examples["question"])
        passages = shared_passages(tokenizer, examples["context"])
        spans = None
        features: Columns = {name: [] for name in _FEATURE_COLUMNS}
        if "answers" in examples:
            spans = first_answer_spans(examples["answers"], tokenizer, passages)
            features["labels"] = []

        for row, (question_ids, passage) in enumerate(zip(questions, passages, strict=True)):
            # A long question leaves little room for the passage, so it is truncated, as in the original code.
            question = question_ids[: self.settings.max_query_length]
            passage_at = len(question) + 2  # After [CLS], the question and [SEP].
            room = max_seq_length - passage_at - 1
            windows = window_spans(len(passage.ids), room, self.settings.doc_stride)
            for number, (start, size) in enumerate(windows):
                ids, segments = join(cls, sep, question, passage.ids[start : start + size].tolist())
                features["input_ids"].append(ids)
                features["token_type_ids"].append(segments)
                features["length"].append(len(ids))
                features["truncated"].append(len(question_ids) > len(question))
                features["window"].append(number)
                features["window_start"].append(start)
                features["passage_at"].append(passage_at)
                if spans is not None:
                    span = spans[row]
                    labels = UNFOUND if span == UNFOUND else target(span, (start, size), passage_at)
                    features["labels"].append(labels)
        return features

    def training_features(self, features: "datasets.Dataset") -> "datasets.Dataset":
        """Leaves out questions whose answer is not found in the passage, and windows without a target.

        A window has no target if it does not contain the answer and the softmax is over the passage alone, without the
        position of [CLS].
        """
        if "labels" not in features.column_names:
            raise UserError(
                f"{flag('do_train')}: the training set of {self.name} has no answers. Choose a labelled file.",
                setting="do_train",
            )
        # A question counts once as dropped, however many windows it has.
        starts = np.asarray(features["labels"][:])[:, 0]
        is_used = starts != UNFOUND[0]
        is_first_window = np.asarray(features["window"][:]) == 0
        num_dropped = int((is_first_window & ~is_used).sum())
        if num_dropped:
            logger.warning(
                "%s: %d training questions are left out, because their answer is not at its place in the passage",
                self.name,
                num_dropped,
            )
        if self.settings.qa_softmax == "paragraph" and not self.unanswerable:
            is_used &= starts != NO_ANSWER[0]
        if not is_used.any():
            raise UserError(
                f"{flag('do_train')}: no training question of {self.name} has its answer at the place that the data "
                "states. Correct answer_start.",
                setting="do_train",
            )
        return features if is_used.all() else features.select(np.flatnonzero(is_used))

    def epoch_size(self, features: "datasets.Dataset") -> int:
        """Returns the number of questions; the original code computes its number of steps from them, not from windows.

        `training_features` may have left out the first window of a question, so a question begins wherever the number
        of the window does not increase.
        """
        return 1 + int((np.diff(features["window"][:]) <= 0).sum())

    def collate(self, features: Sequence[Feature], **layout: Any) -> Batch:
        """Batches windows; see `Task.collate`.

        Returns:
            For training also `start_positions` and `end_positions`, [B], and, if the softmax needs it, `answer_mask` in
            the shape of `input_ids`: the positions over which the softmax of start and end is taken.
        """
        import torch

        softmax = self.settings.qa_softmax
        is_training = "labels" in features[0]
        if is_training and softmax == "padded":
            layout["pad_to_multiple_of"] = self.settings.max_seq_length
        batch = super().collate(features, **layout)
        if not is_training:
            return batch

        # Without a mask, the model takes the softmax over all positions of a row: over one sequence if packed, and
        # otherwise over its padding too.
        batch["start_positions"], batch["end_positions"] = batch.pop("labels").unbind(dim=1)
        if softmax == "sequence" and not layout["packing"]:
            batch["answer_mask"] = batch["attention_mask"].bool()
        if softmax != "paragraph":
            return batch
        rows = [self._paragraph_mask(feature) for feature in features]
        if layout["packing"]:
            batch["answer_mask"] = torch.from_numpy(np.concatenate(rows)[None])
            return batch
        width = batch["input_ids"].shape[1]
        padded_rows = [np.pad(row, (0, width - len(row))) for row in rows]
        batch["answer_mask"] = torch.from_numpy(np.stack(padded_rows))
        return batch

    def _paragraph_mask(self, feature: Feature) -> npt.NDArray[np.bool_]:
        """Returns which positions of an input belong to the passage and, for v2.0, [CLS]."""
        mask = np.zeros(feature["length"], dtype=bool)
        mask[feature["passage_at"] : -1] = True
        mask[0] = self.unanswerable
        return mask

    # ------------------------------------------------------------------------------------------- predictions and scores

    def postprocess(self, dataset: "datasets.Dataset", features: "datasets.Dataset", outputs: Outputs) -> Predictions:
        """Returns the best text of each question (before the threshold of v2.0), its `null_odds` and its `nbest` list.

        Only the outputs of one question are in memory at a time.
        """
        window_numbers = np.asarray(features["window"][:])
        window_starts = np.asarray(features["window_start"][:])
        passage_positions = np.asarray(features["passage_at"][:])
        # The first feature of each question, and behind the last question the number of features.
        first_features = np.append(np.flatnonzero(window_numbers == 0), len(window_numbers))

        if self.tokenizer is None:
            raise TypeError("the task has no tokenizer; call `prepared` first")
        text_of: TextOf = text_by_offsets
        if self.settings.answer_text == "original":
            text_of = OriginalText(self.tokenizer)
        decoder = self.decoder(text_of, nullable=self.unanswerable)
        remaining_outputs = iter(outputs)
        texts = []
        null_odds = []
        n_best_lists = []
        for row, passage in enumerate(passages_of(self.tokenizer, dataset)):
            first, last = first_features[row : row + 2].tolist()
            scores = [output.astype(np.float64) for output in islice(remaining_outputs, last - first)]
            for values in scores:
                self.require_finite(values)
            passage_at = int(passage_positions[first])
            windows = []
            for start, values in zip(window_starts[first:last].tolist(), scores, strict=True):
                # An input ends with the passage and [SEP].
                windows.append((start, len(values) - passage_at - 1))
            answer = decoder.answer(passage, windows, scores, passage_at)
            texts.append(answer.text)
            null_odds.append(answer.null_odds)
            n_best_lists.append(answer.best)
        return {"prediction": texts, "null_odds": null_odds, "nbest": n_best_lists}

    def decoder(self, text_of: TextOf, *, nullable: bool) -> Decoder:
        """Returns the decoder with the settings of the run.

        Args:
            text_of: returns the text of an answer.
            nullable: whether no answer is a candidate too.
        """
        return Decoder(
            exact=self.settings.decoding == "exact",
            n_best_size=self.settings.n_best_size,
            max_answer_length=self.settings.max_answer_length,
            nullable=nullable,
            text_of=text_of,
        )

    def answers(self, predictions: Predictions) -> list[str]:
        """Returns the answers of the model: the best text, or "" if the null odds exceed the threshold (v2.0)."""
        if not self.unanswerable:
            return list(predictions["prediction"])
        threshold = self.null_score_diff_threshold or 0.0
        answers = []
        for text, null_odds in zip(predictions["prediction"], predictions["null_odds"], strict=True):
            answers.append("" if null_odds > threshold else text)
        return answers

    def score(self, predictions: Predictions, dataset: "datasets.Dataset") -> dict[str, float]:
        """Computes `exact_match` and `f1`. For v2.0: at the threshold, at 0 and at the best thresholds."""
        # The columns of the Hub's metrics `squad` and `squad_v2`.
        columns = [dataset["id"], predictions["prediction"], predictions["null_odds"]]
        rows = []
        for identity, text, null_odds in zip(*columns, strict=True):
            row = {"id": identity, "prediction_text": text}
            if self.unanswerable:
                row["no_answer_probability"] = null_odds
            rows.append(row)
        references = []
        for identity, answers in zip(dataset["id"], dataset["answers"], strict=True):
            references.append({"id": identity, "answers": answers})

        # The Hub's metric `squad` has no threshold.
        metric = question_metric(self.name)
        if not self.unanswerable:
            return dict(metric.compute(predictions=rows, references=references))
        threshold = self.null_score_diff_threshold or 0.0
        return dict(metric.compute(predictions=rows, references=references, no_answer_threshold=threshold))

    def is_degenerate(self, predictions: Predictions, dataset: "datasets.Dataset") -> bool:
        """Returns whether all answers are equal. In v2.0 that includes no answer at all."""
        return len(dataset) > 1 and len(set(self.answers(predictions))) == 1

    def example_scores(self, split: str, dataset: "datasets.Dataset", run_folder: Path) -> ExampleScores:
        """Returns exact match and F1 of every question; see `Task.example_scores`."""
        # The file contains the answers after the threshold, in the order of the split.
        path = run_folder / _file_name("predictions", split)
        text_of_id = read_json(path)
        require_first_rows(path, list(text_of_id), list(dataset["id"]))
        questions = dataset.select(range(len(text_of_id)))
        texts = [text_of_id[identity] for identity in questions["id"]]
        scores = score_questions(texts, answer_texts(questions), unanswerable=self.unanswerable)
        return {"exact_match": scores.exact_match.astype(int).tolist(), "f1": scores.f1.round(_F1_DIGITS).tolist()}

    def _question_scores(self, predictions: Predictions, dataset: "datasets.Dataset") -> QuestionScores:
        return score_questions(predictions["prediction"], answer_texts(dataset), unanswerable=self.unanswerable)

    # -------------------------------------------------------------------------------------------------- files of a run

    def write_predictions(
        self, directory: str | Path, split: str, dataset: "datasets.Dataset", predictions: Predictions
    ) -> list[Path]:
        """Writes the predictions of a split.

        predictions.json, nbest_predictions.json and, for v2.0, null_odds.json have the form of the official scripts.
        For other splits than `validation` the name of the split is added (predictions.SPLIT.json).
        predictions.SPLIT.jsonl has a question with its passage and answer on each line.
        """
        folder = Path(directory)
        contents: dict[str, list[Any]] = {
            "predictions": self.answers(predictions),
            "nbest_predictions": predictions["nbest"],
        }
        if self.unanswerable:
            contents["null_odds"] = predictions["null_odds"]
        paths = []
        for name, values in contents.items():
            value_of_id = dict(zip(dataset["id"], values, strict=True))
            text = json.dumps(value_of_id, indent=1, ensure_ascii=False, allow_nan=False)
            path = folder / _file_name(name, split)
            write_text(path, text + "\n")
            paths.append(path)
        records = folder / f"predictions.{split}.jsonl"
        write_json_lines(records, self.records(dataset, predictions))
        return [*paths, records]

    def records(self, dataset: "datasets.Dataset", predictions: Predictions) -> Iterator[JsonObject]:
        """Yields the answer to each question; see `Task.records`.

        `label` is the list of right answers, empty for none. The prediction "" means no answer. `probability` is that
        of the answer among the n best.
        """
        is_labelled = self.is_labelled(dataset)
        rows = zip(dataset, self.answers(predictions), predictions["nbest"], strict=True)
        for example, text, n_best in rows:
            record = {name: example[name] for name in ("id", "question", "context")}
            if is_labelled:
                record["label"] = list(dict.fromkeys(example["answers"]["text"]))
            # The answer after the threshold may be another one than the first of the list.
            probabilities = [entry["probability"] for entry in n_best if entry["text"] == text]
            probability = probabilities[0] if probabilities else 0.0
            yield {**record, "prediction": text, "probability": round(probability, 6)}


def _null_odds(predictions: Predictions) -> Float64Array:
    return np.asarray(predictions["null_odds"], dtype=np.float64)


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
    """Makes the task of a run, with the user's questions if there are some.

    Args:
        config: the settings. Without `task_name`, the data or the fine-tuned model decide between v1.1 and v2.0.
        rows: the user's questions by split.
        names: names of these splits for messages.

    Returns:
        The task, or None if neither settings nor data say which one it is.
    """
    # Without a name, questions may lack answers, and if some do, the task is v2.0.
    task = next((task for task in SQUAD_TASKS if task.name == config.task_name), None)
    may_lack_answers = task is None or task.unanswerable
    questions = {}
    for split, dataset in rows.items():
        questions[split] = questions_of(dataset, names[split], unanswerable=may_lack_answers)
    if task is None:
        if not questions:
            return None
        is_v2 = _has_unanswerable(questions) or (not config.do_train and _has_threshold(config.model_name_or_path))
        task = SQUAD_V2 if is_v2 else SQUAD

    # Questions about one passage stay together, because the passage would otherwise be known from training.
    data = hold_out(questions, config, together=["context"])
    title = Path(next(iter(names.values()))).stem if names else task.title
    return replace(task, title=title, data=data, data_names=names)


def _has_unanswerable(questions: "Mapping[str, datasets.Dataset]") -> bool:
    """Returns whether a question for training or scoring has no answer."""
    for split, dataset in questions.items():
        # In a test set, "no answer" may mean that the answer is not known.
        if split == "test" or "answers" not in dataset.column_names:
            continue
        if not all(texts for texts in answer_texts(dataset)):
            return True
    return False


def _has_threshold(model_name_or_path: str) -> bool:
    """Returns whether a model stores a threshold for no answer, as one fine-tuned on SQuAD v2.0 does."""
    from bert_repro.models.loading import load_config

    return getattr(load_config(model_name_or_path), "null_score_diff_threshold", None) is not None
