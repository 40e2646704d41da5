"""The quickstart from end to end: what each stage explains and prints, and what must be reached."""

import logging
import math
import os
import shutil
import textwrap
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_repro.configs import QuickstartConfig
from bert_repro.errors import UserError
from bert_repro.quickstart import stages
from bert_repro.quickstart.docstring_task import LABELS, bag_of_words_accuracy, majority_accuracy
from bert_repro.quickstart.stages import Folders
from bert_repro.training import training_log
from bert_repro.utils import process
from bert_repro.utils.files import TRAIN_LOG, write_json

logger = logging.getLogger("bert_repro")

RESULTS = "quickstart.json"
WIDTH = 88
"""Of lines on the screen."""
THREADS = 2
"""The model is too small to gain from more, and the same number everywhere gives the same results."""
MARGIN = 0.10
CONSTANT_GUESS_FACTOR = 2.0
"""What must be reached: classifier 10 points above both baselines, MLM accuracy twice the best constant guess."""


@dataclass(frozen=True)
class Promise:
    """Something that the quickstart must reach.

    Args:
        name: what is compared.
        reached: its value.
        needed: its smallest accepted value.
    """

    name: str
    reached: float
    needed: float

    @property
    def holds(self) -> bool:
        """Whether it was reached."""
        return self.reached >= self.needed


def run_quickstart(config: QuickstartConfig) -> dict[str, Any]:
    """Runs all stages and writes `quickstart.json`.

    Returns:
        Its content: metrics, checks, seconds of each stage.

    Raises:
        UserError: the output folder holds something else, or a package is missing.
        SystemExit: code 1; something was not reached.
    """
    folders = Folders(Path(config.output_dir))
    prepare_folder(folders.root)
    _quiet_libraries()
    results = Quickstart(folders, config.seed).run()
    write_json(folders.root / RESULTS, results)
    missed = [Promise(**check) for check in results["checks"] if not Promise(**check).holds]
    if missed:
        reason = "; ".join(
            f"{check.name} is {percent(check.reached)}, expected at least {percent(check.needed)}" for check in missed
        )
        logger.error("not reached: %s", reason)
        process.record_outcome(config.output_dir, 1, f"not reached: {reason}")
        raise SystemExit(1)
    return results


def prepare_folder(folder: Path) -> None:
    """Empties the folder of an earlier quickstart and claims it.

    Raises:
        UserError: it holds something that no quickstart wrote, or cannot be written.
    """
    if folder.is_file():
        raise UserError(f"--output_dir {folder} is a file; name a folder")
    if not process.is_free_folder(folder) and not (folder / RESULTS).is_file():
        raise UserError(f"--output_dir {folder} holds something other than an earlier quickstart; name another folder")
    try:
        if folder.exists():
            shutil.rmtree(folder)
        process.claim_folder(folder)
        write_json(folder / RESULTS, {"finished": False})
    except OSError as error:
        raise UserError(f"--output_dir {folder} cannot be written ({error.strerror}); name another folder") from error


class Quickstart:
    """The stages in order; each leaves its results in `metrics`.

    Args:
        folders: where everything is written.
        seed: of initialization, order, masks and dropout.
    """

    def __init__(self, folders: Folders, seed: int) -> None:
        self.folders, self.seed = folders, seed
        self.screen = Screen()
        self.metrics: dict[str, Any] = {}

    def run(self) -> dict[str, Any]:
        """Runs all stages and returns what `quickstart.json` holds."""
        self._text()
        self._vocabulary()
        self._pretraining()
        self._filling()
        self._finetuning()
        self._publishing()
        checks = self._checks()
        self._end(checks)
        return {
            "finished": True,
            "seed": self.seed,
            "metrics": self.metrics,
            "checks": [vars(check) for check in checks],
            "seconds": {**self.screen.seconds, "total": round(self.screen.total_seconds, 1)},
        }

    def _text(self) -> None:
        explanation = """BERT learns from plain running text, document by document; the paper took books and Wikipedia
            (3.1). Here it is what every Python programmer's machine has: the docstrings of the standard library and of
            the packages this project needs. Nothing is imported or downloaded. One module is one document; parameter
            tables, examples and markup are dropped."""
        with self.screen.stage("Text", explanation):
            self.texts = stages.gather_texts(self.folders)
            words = Counter[str]()
            for module in self.texts.modules:
                words[module.package] += module.words
            self.metrics |= {"documents": len(self.texts.modules), "words": words.total()}
            say(
                f"{words.total():,} words in {len(self.texts.modules):,} documents of {len(words)} packages, most from "
                f"{', '.join(name for name, _ in words.most_common(6))}. For example:"
            )
            say(self.texts.train[0]["text"], label="  ")

    def _vocabulary(self) -> None:
        explanation = """BERT reads pieces of words. A frequent word is one piece, a rare one falls apart into several,
            so nothing is unknown (WordPiece, paper 3). Pieces that continue a word are written with ##. Then the text
            is cut into sentences and stored as numbers."""
        with self.screen.stage("Vocabulary", explanation):
            self.tokenizer = tokenizer = stages.train_vocabulary(self.folders)
            manifest = stages.prepare(self.folders)
            self.metrics |= {"vocabulary": len(tokenizer), "tokens": manifest["counts"]["tokens"]}
            sentence = "Return the eigenvalues of a tridiagonal matrix."
            say(f"{sentence!r} becomes  {' '.join(tokenizer.tokenize(sentence))}")

    def _pretraining(self) -> None:
        explanation = """The network sees two pieces of text with 15% of the tokens hidden or changed, and guesses them
            from both sides (masked LM); it also says whether the second piece followed the first or comes from
            elsewhere (next sentence prediction). Nobody labelled anything: the text is its own teacher (paper 3.1).
            The paper: 12 layers, a million steps, 4 days on 16 TPU chips. Here: 2 layers, minutes."""
        with self.screen.stage("Pre-training", explanation):
            stages.new_model(self.folders, self.seed)
            config = stages.pretraining_config(self.folders, self.seed)
            batch = stages.heldout_examples(config)
            constant_token, constant = stages.best_constant_guess(batch["labels"].numpy())
            self._show_example(batch)
            say("The loss, in nats: how surprised the network is by the right answer. It falls:")
            heldout = stages.pretrain(config)
            constant_text = self.tokenizer.decode([constant_token])
            self.metrics |= {"pretraining": heldout, "constant_token": constant_text, "constant_accuracy": constant}
            self._show_progress()
            say(
                f"On modules it never saw it guesses {percent(heldout['mlm_accuracy'])} of the hidden tokens exactly. "
                f"The best constant guess, {constant_text!r} everywhere, gets {percent(constant)}. Next sentence: "
                f"{percent(heldout['nsp_accuracy'])} right, chance is 50%."
            )

    def _show_example(self, batch: dict[str, Any]) -> None:
        """Prints one held-out example as the network sees it, and what it should say."""
        labels = batch["labels"][0]
        shown = batch["input_ids"][0][batch["attention_mask"][0].bool()]
        hidden = self.tokenizer.convert_ids_to_tokens(labels[labels >= 0].tolist())
        follows = "does not follow" if batch["next_sentence_label"][0] else "follows"
        say(self.tokenizer.decode(shown), label="  It reads:         ")
        say(f"{' '.join(hidden)} -- and: the second piece {follows} the first", label="  It should answer: ")

    def _show_progress(self) -> None:
        rows = [row for row in training_log.read(self.folders.pretrained / TRAIN_LOG) if "mlm_loss" in row]
        wanted = [row for row in rows if row["step"] in (10, 100, 1000) or row is rows[-1] or row["step"] % 1000 == 0]
        lines = [("step", "masked LM loss", "as unsure as among", "next sentence loss", "tokens read")]
        lines += [
            (
                f"{row['step']:,}",
                f"{row['mlm_loss']:.2f}",
                f"{math.exp(row['mlm_loss']):,.0f} tokens",
                f"{row['nsp_loss']:.3f}",
                f"{row['tokens']:,}",
            )
            for row in wanted
        ]
        show(lines, right=range(5))

    def _filling(self) -> None:
        explanation = """The pre-trained network fills in a hidden word. The sentences were fixed before any model was
            trained, and these are its five best guesses as they come, good or bad; it has read for minutes only."""
        with self.screen.stage("Filling in [MASK]", explanation):
            filled = stages.fill_masks(self.folders.pretrained)
            self.metrics["filled"] = [{"text": text, "guesses": guesses} for text, guesses in filled]
            for text, guesses in filled:
                say(text)
                show([[f"{token} {percent(score)}" for token, score in guesses]])

    def _finetuning(self) -> None:
        per_label = stages.TRAIN_TEXTS_PER_LABEL
        explanation = f"""One new layer on top of [CLS], and all weights learn a task from few labelled texts (paper
            3.2, 4.1). The task: which of {len(LABELS)} packages does a docstring come from? Package names are removed
            from the texts. {per_label} labelled texts a package to learn from; {len(self.texts.validation)} to score
            on, out of modules that neither pre-training nor fine-tuning saw. To see what pre-training is worth, the
            network as it was before pre-training learns the same task in the same way."""
        with self.screen.stage("Fine-tuning", explanation):
            folders = self.folders
            self.metrics["classifier"] = {
                "majority": majority_accuracy([row["label"] for row in self.texts.validation]),
                "bag_of_words": bag_of_words_accuracy(self.texts.train, self.texts.validation),
                "untrained": stages.finetune_from(folders, folders.untrained, self.seed),
                "pretrained": stages.finetune_from(folders, folders.pretrained, self.seed),
            }
            show(self._classifier_rows(), right=(1,))

    def _classifier_rows(self) -> list[tuple[str, str]]:
        found = self.metrics["classifier"]
        return [
            ("always the most frequent package", percent(found["majority"])),
            ("bag of words: TF-IDF and logistic regression", percent(found["bag_of_words"])),
            ("the same network, not pre-trained", percent(found["untrained"])),
            ("pre-trained", percent(found["pretrained"])),
        ]

    def _publishing(self) -> None:
        explanation = """Each run has left a folder as the Hugging Face Hub wants it: weights, configuration, tokenizer,
            model card, results. Another process now loads it with transformers alone, without this package, and its
            outputs are compared with ours."""
        with self.screen.stage("Publishing", explanation):
            texts = [text.replace("[MASK]", self.tokenizer.mask_token) for text in stages.FILL_MASK_TEXTS]
            found = stages.compare_with_upstream(self.folders, texts)
            self.metrics["largest_difference"] = {name: difference for name, (difference, _) in found.items()}
            show([(f"{name}.from_pretrained(...)", f"{difference:.1e}") for name, (difference, _) in found.items()])
            broken = [name for name, (_, equal) in found.items() if not equal]
            if broken:
                raise RuntimeError(f"transformers alone gives other outputs than this package: {', '.join(broken)}")

    def _checks(self) -> list[Promise]:
        classifier = self.metrics["classifier"]
        accuracy = classifier["pretrained"]
        return [
            Promise(
                "held-out masked LM accuracy",
                self.metrics["pretraining"]["mlm_accuracy"],
                CONSTANT_GUESS_FACTOR * self.metrics["constant_accuracy"],
            ),
            Promise("classifier accuracy, over the majority class", accuracy, classifier["majority"] + MARGIN),
            Promise("classifier accuracy, over the untrained network", accuracy, classifier["untrained"] + MARGIN),
        ]

    def _end(self, checks: list[Promise]) -> None:
        heading("What was reached", self.screen.clock())
        rows = [("", "reached", "at least", "")]
        rows += [
            (check.name, percent(check.reached), percent(check.needed), "yes" if check.holds else "NO")
            for check in checks
        ]
        show(rows, right=(1, 2))
        times = ", ".join(f"{title.lower()} {seconds:.0f}" for title, seconds in self.screen.seconds.items())
        say(f"Seconds: {times}; together {self.screen.clock()} minutes.")
        folders = self.folders
        heading(f"Where to look next, in {folders.root}")
        found = {
            folders.pretrained / "README.md": "the model card, with every setting and metric",
            folders.pretrained / "training.png": "loss and learning rate",
            folders.classifier(folders.pretrained) / "predictions.validation.tsv": "the classifier's answers",
            folders.examples / "validation.jsonl": "the texts it was asked about",
            folders.text: "what was read",
        }
        show([(path.relative_to(folders.root).as_posix(), what) for path, what in found.items()])
        heading("What to try next")
        logger.info(
            "%s\n%s\n%s",
            f"  python recipes/run_pretraining.py --model_name_or_path {folders.pretrained} \\",
            f"    --corpus {folders.corpus} --max_seq_length 128 --max_steps 20000 --output_dir runs/longer",
            "  python recipes/run_glue.py --help",
        )


def _quiet_libraries() -> None:
    # Nothing is downloaded, so progress bars and warnings would only hide the stages.
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    warnings.simplefilter("ignore")
    import datasets
    import torch
    import transformers

    torch.set_num_threads(min(THREADS, torch.get_num_threads()))
    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


class Screen:
    """Numbers the stages and keeps their times."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._began = time.perf_counter()

    @property
    def total_seconds(self) -> float:
        """Seconds since the screen was made."""
        return time.perf_counter() - self._began

    def clock(self) -> str:
        """Returns seconds as minutes and seconds, 3:07."""
        seconds = int(self.total_seconds)
        return f"{seconds // 60}:{seconds % 60:02d}"

    @contextmanager
    def stage(self, title: str, explanation: str) -> Iterator[None]:
        """Prints a heading, what BERT does here in plain words, and the time that the stage takes."""
        began = time.perf_counter()
        heading(f"{len(self.seconds) + 1}. {title}", self.clock())
        say(explanation)
        logger.info("")
        yield
        self.seconds[title] = round(time.perf_counter() - began, 1)


def heading(title: str, clock: str = "") -> None:
    """Logs a line with a title at its left and the time at its right end."""
    rule = "-" * (WIDTH - len(title) - len(clock) - 2)
    logger.info("\n%s", f"{title} {rule} {clock}".rstrip())


def say(text: str, label: str = "") -> None:
    """Logs a text in lines of at most `WIDTH` characters, all beginning after a label at the left."""
    filled = textwrap.fill(
        " ".join(text.split()),
        WIDTH,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_long_words=False,
        break_on_hyphens=False,
    )
    logger.info("%s", filled)


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Lays out rows in columns.

    Args:
        rows: cells; all rows of the same length.
        right: columns that are set to the right, for numbers.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = (
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  " + "  ".join(cells).rstrip())
    return lines


def show(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Logs a table."""
    logger.info("%s", "\n".join(table(rows, right)))


def percent(value: float) -> str:
    """Returns a fraction as a percentage with one decimal."""
    return f"{100 * value:.1f}%"
