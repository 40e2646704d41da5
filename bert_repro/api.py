"""Pre-training and fine-tuning from Python, for scripts and notebooks: a configuration in, the typed results out.

The recipes run the same code; the settings are those of docs/CONFIGURATION.md. Errors are raised as exceptions
(`bert_repro.errors.UserError` for wrong input) in place of exit codes, and status.json is written as by a recipe.
"""

from typing import cast

from bert_repro.configs import FinetuningConfig, GlueConfig, NerConfig, PretrainingConfig, SquadConfig, SwagConfig
from bert_repro.recipes import RECIPES
from bert_repro.results import RunResults


def pretrain(config: PretrainingConfig) -> RunResults:
    """Pre-trains BERT from scratch or continues from a checkpoint (paper 3.1, A.2).

        import bert_repro

        results = bert_repro.pretrain(
            bert_repro.PretrainingConfig(
                corpus="corpus",
                num_hidden_layers=2,
                hidden_size=32,
                num_attention_heads=2,
                max_seq_length=64,
                train_batch_size=8,
                max_steps=3,
                output_dir="runs/tiny-bert",
            )
        )
        print(results["metrics"]["mlm_accuracy"], results["model"]["parameters"])

    Args:
        config: the settings; `corpus` names a folder that `bert_repro.prepare_corpus` made. Presets such as
            `bert_repro.presets.PRESETS["paper-base"].values` can be passed as keywords.

    Returns:
        What results.json in `config.output_dir` holds. The model is in that folder too, for `from_pretrained`.

    Raises:
        UserError: the settings, the corpus or the model are not as they should be.
        NonFiniteError: the loss is not finite; lower the learning rate.
    """
    return cast(RunResults, RECIPES["run_pretraining"].run(config))


def finetune(config: FinetuningConfig) -> RunResults:
    """Fine-tunes, scores and predicts with a model, as the settings ask; sweeps included.

        import bert_repro

        results = bert_repro.finetune(
            bert_repro.GlueConfig(
                model_name_or_path="runs/tiny-bert",
                train_file="train.csv",
                validation_file="dev.csv",
                do_train=True,
                do_eval=True,
                max_steps=3,
                train_batch_size=8,
                output_dir="runs/my-classifier",
            )
        )
        print(results["metrics"]["accuracy"])

    Args:
        config: of the family of the task: `GlueConfig` (texts and labels), `NerConfig` (tagged words), `SquadConfig`
            (questions about passages) or `SwagConfig` (multiple choice).

    Returns:
        What results.json in `config.output_dir` holds: metrics by split, training, settings, hardware.

    Raises:
        UserError: the settings, the data or the model are not as they should be.
        NonFiniteError: the loss is not finite; lower the learning rate.
    """
    recipe = next(name for kind, name in _RECIPE_OF.items() if isinstance(config, kind))
    return cast(RunResults, RECIPES[recipe].run(config))


_RECIPE_OF: dict[type[FinetuningConfig], str] = {
    GlueConfig: "run_glue",
    NerConfig: "run_ner",
    SquadConfig: "run_squad",
    SwagConfig: "run_swag",
}
