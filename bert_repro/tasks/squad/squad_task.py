"""SQuAD v1.1 and v2.0: the answer to a question is a span of a passage (paper 4.2, 4.3; original run_squad.py).

A question over a long passage is one example with several features, one for each window; `questions` reads the files,
`windows` cuts the passages, `decoding` turns scores into answers, `scoring` scores them.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from bert_repro.configs import FinetuningConfig, SquadConfig
from bert_repro.errors import NonFiniteError, UserError
from bert_repro.tasks import encoding
from bert_repro.tasks.base import Batch, ExampleScores, Feature, FloatArray, Predictions, Task
from bert_repro.tasks.encoding import join, special_ids, token_ids
from bert_repro.tasks.predictions import require_first_rows
from bert_repro.tasks.splits import custom_names, custom_title, from_hub, short_row
from bert_repro.tasks.squad import answer_lists, scoring, windows
from bert_repro.tasks.squad.answer_lists import ListsOnDisk, answer_records, details_by_question_word, write_answers
from bert_repro.tasks.squad.decoding import Decoder, OriginalText, text_by_offsets
from bert_repro.tasks.squad.questions import divided_questions, read_questions
from bert_repro.tasks.squad.windows import (
    NO_ANSWER,
    UNFOUND,
    first_answer_spans,
    shared_passages,
    target,
    window_spans,
)
from bert_repro.utils.readers import read_json

if TYPE_CHECKING:
    import datasets
    import evaluate
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
        hub_dataset: its id on the Hub.
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
    hub_dataset: str
    unanswerable: bool
    settings: SquadConfig = _DEFAULTS
    null_score_diff_threshold: float | None = None
    tokenizer: Any = field(default=None, repr=False)
    reference_column: ClassVar[str] = "answers"
    encoding_code: ClassVar[tuple[Any, ...]] = (encoding, windows)

    def prepared(self, config: FinetuningConfig, tokenizer: "PreTrainedTokenizerBase") -> "SquadTask":
        """See `Task.prepared`."""
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

    def load(self, data_dir: Path | None, splits: Sequence[str]) -> "dict[str, datasets.Dataset]":
        """See `Task.load`; files named in the settings go before those of `data_dir` or the Hub."""
        files, fraction, seed = self.settings.data_files, self.settings.validation_fraction, self.settings.seed
        if fraction is not None and "test" not in splits:
            divided = divided_questions(files["train"], fraction, seed, unanswerable=self.unanswerable)
            return {split: divided[split] for split in splits}
        named = {split: getattr(self.settings, f"{split}_file") for split in splits}
        official = {split: (data_dir or Path()) / self.files[split] for split in splits}
        found = {}
        for split in splits:
            path = Path(named[split] or official[split])
            if named[split] or (data_dir is not None and path.is_file()):
                found[split] = read_questions(path, unanswerable=self.unanswerable)
        others = [split for split in splits if split not in found]
        if data_dir is None and others:
            found |= from_hub(self.hub_dataset, others)
        if not found:
            paths, flags = " and ".join(map(str, official.values())), " or ".join(f"--{split}_file" for split in splits)
            raise UserError(f"{paths}: no such file; put the official file into --data_dir, or name one with {flags}")
        return found

    def data_files(self, data_dir: Path) -> list[Path]:
        """See `Task.data_files`."""
        return [data_dir / self.files[split] for split in ("train", *self.eval_splits)]

    def encoding_settings(self) -> dict[str, Any]:
        """See `Task.encoding_settings`."""
        return {"max_query_length": self.settings.max_query_length, "doc_stride": self.settings.doc_stride}

    def rows_at_once(self, dataset: "datasets.Dataset", max_seq_length: int) -> int:
        """See `Task.rows_at_once`."""
        return windows.questions_at_once(dataset, 1 + max_seq_length // self.settings.doc_stride)

    def encode_batch(
        self, examples: Mapping[str, list[Any]], tokenizer: "PreTrainedTokenizerBase", max_seq_length: int
    ) -> dict[str, list[Any]]:
        """Makes [CLS] question [SEP] window [SEP] for every window of every question."""
        cls, sep = special_ids(tokenizer)
        questions = token_ids(tokenizer, examples["question"])
        passages = shared_passages(tokenizer, examples["context"])
        spans = first_answer_spans(examples["answers"], tokenizer, passages) if "answers" in examples else None
        columns = ("input_ids", "token_type_ids", "length", "truncated", "window", "window_start", "passage_at")
        features: dict[str, list[Any]] = {name: [] for name in columns}
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

    def collate(
        self, features: Sequence[Feature], *, pad_token_id: int, packing: bool, pad_to_multiple_of: int | None = None
    ) -> Batch:
        """See `Task.collate`; `start_positions`, `end_positions` and, where the softmax needs it, `answer_mask`."""
        import torch

        from bert_repro.training.batches import collate_features

        softmax, training = self.settings.qa_softmax, "labels" in features[0]
        if training and softmax == "padded":
            pad_to_multiple_of = self.settings.max_seq_length
        batch = collate_features(
            features, pad_token_id=pad_token_id, packing=packing, pad_to_multiple_of=pad_to_multiple_of
        )
        if not training:
            return batch
        labels = torch.tensor([feature["labels"] for feature in features])
        batch["start_positions"], batch["end_positions"] = labels.unbind(dim=1)
        if softmax == "paragraph":
            rows = [self._paragraph_mask(feature) for feature in features]
            if packing:
                batch["answer_mask"] = torch.from_numpy(np.concatenate(rows)[None])
            else:
                width = batch["input_ids"].shape[1]
                batch["answer_mask"] = torch.from_numpy(np.stack([np.pad(row, (0, width - len(row))) for row in rows]))
        elif softmax == "sequence" and not packing:
            batch["answer_mask"] = batch["attention_mask"].bool()
        return batch

    def _paragraph_mask(self, feature: Feature) -> npt.NDArray[np.bool_]:
        mask = np.zeros(feature["length"], dtype=bool)
        mask[feature["passage_at"] : -1] = True
        mask[0] = self.unanswerable
        return mask

    def postprocess(
        self, dataset: "datasets.Dataset", features: "datasets.Dataset", outputs: Iterable[FloatArray]
    ) -> Predictions:
        """Returns the best text of each question, for v2.0 before the threshold, with its `null_odds` and `nbest` list.

        The outputs of one question and, on disk, the n-best lists are all that is held beside texts and odds.
        """
        names = ("window", "window_start", "passage_at")
        number, starts, passage_at = (np.asarray(features[name][:]) for name in names)
        firsts = np.append(np.flatnonzero(number == 0), len(number))
        decoder, coming = self._decoder(), iter(outputs)
        texts, odds, nbest = [], [], ListsOnDisk()
        at_once = self.rows_at_once(dataset, self.settings.max_seq_length)
        for row, passage in enumerate(windows.passages_of(self.tokenizer, dataset, at_once)):
            rows = slice(firsts[row], firsts[row + 1])
            scores = [values.astype(np.float64) for values in islice(coming, rows.stop - rows.start)]
            if not all(np.isfinite(values).all() for values in scores):
                raise NonFiniteError(f"{self.name}: the model's output is not finite")
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

    def references(self, dataset: "datasets.Dataset") -> list[dict[str, Any]]:
        """See `Task.references`."""
        return [
            dict(zip(("id", "answers"), row, strict=True))
            for row in zip(dataset["id"], dataset["answers"], strict=True)
        ]

    def score(self, predictions: Predictions, dataset: "datasets.Dataset") -> dict[str, float]:
        """Computes `exact_match` and `f1`; for v2.0 those at the threshold, at 0 and at the best thresholds."""
        columns = {"id": dataset["id"], "prediction_text": predictions["prediction"]}
        options = {}
        if self.unanswerable:
            columns["no_answer_probability"] = predictions["null_odds"]
            options["no_answer_threshold"] = self.null_score_diff_threshold or 0.0
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        references = self.references(dataset)
        scores: dict[str, float] = self.load_metric().compute(predictions=rows, references=references, **options)
        return scores

    def load_metric(self, **options: Any) -> "evaluate.Metric":
        """See `Task.load_metric`; the inputs are those of the Hub's `squad` and `squad_v2`."""
        from bert_repro.tasks.metrics import Squad, SquadV2

        return SquadV2(**options) if self.unanswerable else Squad(**options)

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
        them (predictions.SPLIT.json for other splits than `validation`), and the files of `write_answers`."""
        folder, ids = Path(directory), dataset["id"]
        contents: dict[str, Any] = {"predictions": self.answers(predictions), "nbest_predictions": predictions["nbest"]}
        if self.unanswerable:
            contents["null_odds"] = predictions["null_odds"]
        for name, values in contents.items():
            answer_lists.write_by_id(folder / _file_name(name, split), ids, values)
        lists = write_answers(folder, split, lambda: self.records(dataset, predictions), unanswerable=self.unanswerable)
        return [*(folder / _file_name(name, split) for name in contents), *lists]

    def score_details(self, predictions: Predictions, dataset: "datasets.Dataset") -> dict[str, Any]:
        """See `Task.score_details`; by what is asked for."""
        return details_by_question_word(self.answers(predictions), dataset, unanswerable=self.unanswerable)

    def records(self, dataset: "datasets.Dataset", predictions: Predictions) -> Iterator[dict[str, Any]]:
        """See `Task.records`; the label is the list of right answers, empty for none; "" predicts no answer."""
        return answer_records(dataset, self.answers(predictions), predictions["nbest"])

    def data_description(self) -> dict[str, Any]:
        """See `Task.data_description`; nothing is known of custom data but its files."""
        if files := self.settings.data_files:
            return {"dataset": None, "title": custom_title(files), "files": custom_names(files)}
        return {"dataset": self.hub_dataset, "language": "en", "license": self.data_license}

    def example(self, dataset: "datasets.Dataset | None") -> dict[str, Any] | None:
        """See `Task.example`; a training question with a short passage. SQuAD's license allows it."""
        return short_row(dataset, {"text": "question", "context": "context"})

    def _questions(
        self, predictions: Predictions, dataset: "datasets.Dataset"
    ) -> tuple[scoring.QuestionScores, npt.NDArray[np.float64]]:
        right = scoring.answer_texts(dataset)
        questions = scoring.score_questions(predictions["prediction"], right, unanswerable=self.unanswerable)
        return questions, np.asarray(predictions["null_odds"], dtype=np.float64)

    def _decoder(self) -> Decoder:
        settings = self.settings
        return Decoder(
            exact=settings.decoding == "exact",
            n_best_size=settings.n_best_size,
            max_answer_length=settings.max_answer_length,
            nullable=self.unanswerable,
            text_of=OriginalText(self.tokenizer) if settings.answer_text == "original" else text_by_offsets,
        )


def _file_name(name: str, split: str) -> str:
    return f"{name}.json" if split == "validation" else f"{name}.{split}.json"


SQUAD = SquadTask(
    name="squad",
    title="SQuAD v1.1",
    files={"train": "train-v1.1.json", "validation": "dev-v1.1.json", "test": "test-v1.1.json"},
    hub_dataset="rajpurkar/squad",
    unanswerable=False,
    paper_metrics={"table_2": ("exact_match", "f1"), "table_5": ("f1",)},
)

SQUAD_V2 = SquadTask(
    name="squad_v2",
    title="SQuAD v2.0",
    files={"train": "train-v2.0.json", "validation": "dev-v2.0.json", "test": "test-v2.0.json"},
    hub_dataset="rajpurkar/squad_v2",
    unanswerable=True,
    paper_metrics={"table_3": ("exact_match", "f1")},
    paper_batch=48,
    paper_epochs=2.0,
)

SQUAD_TASKS = (SQUAD, SQUAD_V2)
