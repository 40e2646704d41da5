"""The folders of a study: where its runs are made, which are done, and what the report needs of them.

    OUTPUT/runs/RUN/          the output folder of a run; models and checkpoints of pre-training runs stay there
    OUTPUT/records/RUN/       results.json with the table entries that the run fills, and examples.json for fine-tuning
    OUTPUT/claims/RUN.json    which process is making the run

A run is done when its record exists. The name of a run contains a digest of its settings, so a record is found again by
the same settings and never taken for that of others.
"""

import json
import shutil
from pathlib import Path
from typing import Any, cast

from bert_repro.configs import StudyConfig
from bert_repro.errors import NonFiniteError
from bert_repro.reproduction.paper_results import EXAMPLES_FILE
from bert_repro.reproduction.suite import PlannedRun
from bert_repro.results import StudyResults, read_results, write_results
from bert_repro.utils.files import CHECKPOINTS, RESULTS, SWEEP, atomic_folder, write_text
from bert_repro.utils.process import recorded_exit_code

_WEIGHTS = "*.safetensors*"

# Folders of one machine decide nothing, and results that are published should not name them.
_FOLDER_SETTINGS = (
    "output_dir", "corpus", "data_dir", "train_file", "model_name_or_path", "ensemble_with", "feature_cache_dir",
)  # fmt: skip


class RunStore:
    """Finds, keeps and cleans up the runs of a study.

    Args:
        config: names the folders.
    """

    def __init__(self, config: StudyConfig) -> None:
        self.output_dir = Path(config.output_dir)
        self.records = self.output_dir / "records"

    def folder(self, run: PlannedRun) -> Path:
        """Returns the run's output folder."""
        return self.output_dir / "runs" / run.id

    def claim(self, run: PlannedRun) -> Path:
        """Returns the file that says which process is making the run."""
        return self.output_dir / "claims" / f"{run.id}.json"

    def is_done(self, run: PlannedRun) -> bool:
        """Whether the run's results are recorded, or it stands for a finished model."""
        return run.model is not None or (self.records / run.id / RESULTS).exists()

    def is_ready(self, run: PlannedRun) -> bool:
        """Whether all runs that it needs are done."""
        return all(self.is_done(needed) for needed in run.needed)

    def has_failed(self, run: PlannedRun) -> bool:
        """Whether the run ended with a loss that is not finite."""
        return not self.is_done(run) and recorded_exit_code(self.folder(run)) == NonFiniteError.exit_code

    def is_over(self, run: PlannedRun) -> bool:
        """Whether a run is done, has failed, or cannot start because a run that it needs has failed."""
        return self.is_done(run) or any(self.has_failed(needed) for needed in (run, *run.ancestors))

    def keep(self, run: PlannedRun, size_preset: str, examples: dict[str, Any]) -> None:
        """Records a finished run. The record appears in one move, so a kill cannot leave half of it.

        Args:
            run: the run; its output folder contains results.json.
            size_preset: name of the size preset; for a file, the record has the file's name without folder and ending.
            examples: split -> metric -> the scores of its examples.
        """
        results = read_results(self.folder(run))
        study: dict[str, Any] = {
            "run": run.id,
            "size_preset": Path(size_preset).stem,
            "table_entries": [vars(entry) for entry in run.entries],
            "pretraining": run.pretraining.id,
            "pretraining_seed": run.pretraining.settings.get("seed"),
            "start": run.start.id if run.start else None,
            "checkpoint_step": run.step,
            **_finished_model(run),
        }
        results["study"] = cast(StudyResults, study)
        settings = results["settings"]
        settings |= {name: None for name in _FOLDER_SETTINGS if name in settings}
        results.pop("command", None)
        with atomic_folder(self.records / run.id) as folder:
            if examples:
                text = json.dumps(examples, separators=(",", ":"), allow_nan=False)
                write_text(folder / EXAMPLES_FILE, f"{text}\n")
            write_results(folder, results)

    def update_entries(self, run: PlannedRun) -> None:
        """Adds table entries to a record that was made for fewer tables, or with the models in another order.

        If the finished model had another name at that time, its old entries are dropped.
        """
        results = read_results(self.records / run.id)
        study = cast(dict[str, Any], results["study"])
        model = _finished_model(run)
        was_renamed = study.get("model", {}).get("name") != model.get("model", {}).get("name")
        entries = [] if was_renamed else list(study["table_entries"])
        entries += [vars(entry) for entry in run.entries if vars(entry) not in entries]
        updated = {**study, "table_entries": entries, **model}
        if updated != study:
            results["study"] = cast(StudyResults, updated)
            write_results(self.records / run.id, results)

    def drop_weights(self, run: PlannedRun) -> None:
        """Removes the weights of a fine-tuned model and its checkpoints."""
        for folder in (self.folder(run), *self.folder(run).glob(f"{SWEEP}/*/*")):
            for path in folder.glob(_WEIGHTS):
                path.unlink()
        shutil.rmtree(self.folder(run) / CHECKPOINTS, ignore_errors=True)


def _finished_model(run: PlannedRun) -> dict[str, Any]:
    """Returns the field `model` of a record if the run starts from a finished model, otherwise nothing."""
    start = run.pretraining
    if start.model is None:
        return {}
    return {"model": {"name": start.name, "content": start.data, "place": start.place}}
