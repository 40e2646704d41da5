"""Model cards and uploads to the Hugging Face Hub."""

from dataclasses import dataclass

from bert_repro.configs.base import Config, setting


@dataclass(frozen=True)
class CardConfig(Config):
    """Rewrites the model card of a finished run with facts that the run cannot know.

      bert-repro make_card --folder runs/mrpc --base_model google-bert/bert-base-uncased

    Numbers come from results.json and train_log.jsonl only.
    """

    REQUIRED = ("folder",)

    folder: str = setting("", "Output folder of a finished run.")
    hub_model_id: str | None = setting(None, "The model's name on the card; default: as in the run, else the folder.")
    base_model: str | None = setting(None, "Id on the Hub of the weights that the run started from.")
    language: tuple[str, ...] = setting((), "Languages of the text, as ISO 639 codes.")
    license: str | None = setting(None, "License of the weights, as the Hub spells it, for example apache-2.0.")
    note: str | None = setting(None, "A sentence about the data or the scores.")


@dataclass(frozen=True)
class PushConfig(Config):
    """Uploads a finished model to the Hugging Face Hub: weights, code, card, results.

      hf auth login
      bert-repro push_to_hub --folder runs/mrpc --hub_model_id org/bert-mrpc --dry_run
      bert-repro push_to_hub --folder runs/mrpc --hub_model_id org/bert-mrpc --hub_private_repo
      bert-repro push_to_hub --folder runs/bert --hub_model_id org/bert --checkpoints all

    One commit; none if nothing has changed. Optimizer states and predictions stay here. No recipe takes a token.
    `AutoModel.from_pretrained("org/bert", revision="step-000500")` loads a published checkpoint.
    """

    REQUIRED = ("folder", "hub_model_id")

    folder: str = setting("", "Output folder of a finished run, or one of its checkpoints.")
    hub_model_id: str = setting("", "Repository on the Hub, for example org/name; created if it does not exist.")
    hub_private_repo: bool | None = setting(
        None, "Make a new repository private; default: public, unless its organization decides otherwise."
    )
    checkpoints: tuple[str, ...] = setting(
        (), "Also publish checkpoints of the run as revisions such as step-000500: steps, or all."
    )
    dry_run: bool = setting(False, "List files and sizes, and stop.")


@dataclass(frozen=True)
class CorpusPushConfig(Config):
    """Uploads a prepared corpus to the Hugging Face Hub as a dataset.

      hf auth login
      bert-repro push_corpus --corpus runs/corpus --hub_dataset_id org/wiki --license cc-by-sa-4.0 --language en

    `run_pretraining --corpus org/wiki` then pulls it on any machine. The texts can be read back from the ids: upload
    only what you may pass on, under the license that the texts have.
    """

    REQUIRED = ("corpus", "hub_dataset_id", "license")

    corpus: str = setting("", "Prepared corpus: a folder that prepare_corpus made.")
    hub_dataset_id: str = setting("", "Dataset on the Hub, for example org/name; created if it does not exist.")
    license: str = setting(
        "", "License of the texts as the Hub spells it, for example cc-by-sa-4.0; other where none of its names fits."
    )
    language: str | None = setting(None, "Language of the texts, for example en.")
    description: str | None = setting(None, "A sentence for the card: what the texts are.")
    hub_private_repo: bool | None = setting(
        None, "Make a new dataset private; default: public, unless its organization decides otherwise."
    )
    dry_run: bool = setting(False, "List files and sizes, and stop.")
