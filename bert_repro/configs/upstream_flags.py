"""Flags of transformers' scripts and TrainingArguments that have another name here, or no counterpart.

`arguments.py` shows the advice to a user who types one of them; `docs/make_reference.py` makes the page "Coming from
transformers' scripts" from the same table. Flags with the same name and meaning are not listed.
"""

from typing import NamedTuple


class UpstreamFlag(NamedTuple):
    """A flag of transformers.

    Args:
        name: without dashes.
        ours: the flags to use instead, as they are typed; empty if there is nothing to type.
        note: a sentence that says what is different.
    """

    name: str
    ours: str
    note: str

    @property
    def advice(self) -> str:
        """The sentence for a user who typed the flag."""
        if not self.ours:
            return self.note
        return f"Use {self.ours} instead. {self.note}".strip()


_TRAINING = (
    UpstreamFlag("fp16", "--mixed_precision fp16", ""),
    UpstreamFlag("bf16", "--mixed_precision bf16", "With auto, bfloat16 is used if the hardware supports it."),
    UpstreamFlag("tf32", "--mixed_precision auto", ""),
    UpstreamFlag("fp16_full_eval", "--mixed_precision fp16", "It holds for training and evaluation."),
    UpstreamFlag("bf16_full_eval", "--mixed_precision bf16", "It holds for training and evaluation."),
    UpstreamFlag("no_cuda", "", "Set the environment variable ACCELERATE_USE_CPU=true instead."),
    UpstreamFlag("use_cpu", "", "Set the environment variable ACCELERATE_USE_CPU=true instead."),
    UpstreamFlag("evaluation_strategy", "--eval_steps N", "Without it, evaluation happens once, at the end."),
    UpstreamFlag("eval_strategy", "--eval_steps N", "Without it, evaluation happens once, at the end."),
    UpstreamFlag("save_strategy", "--save_steps N", "Without it, only the final model is saved."),
    UpstreamFlag("logging_strategy", "--logging_steps N", ""),
    UpstreamFlag("logging_first_step", "--logging_steps N", ""),
    UpstreamFlag("logging_dir", "--report_to tensorboard", "Logs are written to the output folder."),
    UpstreamFlag("metric_for_best_model", "--load_best_model_at_end", "The task's main metric chooses the best model."),
    UpstreamFlag("greater_is_better", "--load_best_model_at_end", "The main metric of every task is better if higher."),
    UpstreamFlag("save_only_model", "", "The final folder contains the model alone; checkpoints can always resume."),
    UpstreamFlag("lr_scheduler_type", "--warmup_ratio X", "The schedule is the paper's: linear warm-up and decay."),
    UpstreamFlag("optim", "", "The optimizer is the paper's Adam with decoupled weight decay."),
    UpstreamFlag("label_smoothing_factor", "--label_smoothing X", ""),
    UpstreamFlag(
        "auto_find_batch_size", "", "A batch that does not fit into memory is split; its size stays the same."
    ),
    UpstreamFlag("group_by_length", "--packing", "Sequences are packed without padding, which is the default."),
    UpstreamFlag("train_sampling_strategy", "--packing", "Sequences are packed without padding, the default."),
    UpstreamFlag("full_determinism", "--deterministic", ""),
    UpstreamFlag("data_seed", "--seed N", "One seed decides the order of the data too."),
    UpstreamFlag("activation_checkpointing", "--gradient_checkpointing", ""),
    UpstreamFlag("torch_compile_backend", "--torch_compile", ""),
    UpstreamFlag("torch_compile_mode", "--torch_compile", ""),
    UpstreamFlag("hub_token", "", "Log in with `hf auth login`, or set the environment variable HF_TOKEN."),
    UpstreamFlag("token", "", "Log in with `hf auth login`, or set the environment variable HF_TOKEN."),
    UpstreamFlag("use_auth_token", "", "Log in with `hf auth login`, or set the environment variable HF_TOKEN."),
    UpstreamFlag("hub_strategy", "--push_to_hub", "The model is uploaded once, when training has ended."),
    UpstreamFlag("per_gpu_train_batch_size", "--per_device_train_batch_size N", ""),
    UpstreamFlag("per_gpu_eval_batch_size", "--per_device_eval_batch_size N", ""),
    UpstreamFlag("dataloader_drop_last", "", "The last, smaller batch is always used."),
    UpstreamFlag("local_rank", "", "Start the recipe with torchrun or accelerate launch."),
    UpstreamFlag("ddp_backend", "", "Start the recipe with torchrun or accelerate launch, which choose the backend."),
    UpstreamFlag("fsdp", "", "Weights are not sharded; every device has the complete model."),
    UpstreamFlag("deepspeed", "", "Weights are not sharded; every device has the complete model."),
    UpstreamFlag("remove_unused_columns", "", "Columns that the task does not read are ignored."),
    UpstreamFlag("disable_tqdm", "", "The progress bar is only shown on a terminal."),
    UpstreamFlag("log_level", "", "Everything important is logged; there is one level."),
    UpstreamFlag("do_lower_case", "", "The tokenizer of the checkpoint decides it."),
)
_SCRIPTS = (
    UpstreamFlag("tokenizer_name", "--model_name_or_path NAME", "The tokenizer is that of the checkpoint."),
    UpstreamFlag("config_name", "--model_name_or_path NAME", "The configuration is that of the checkpoint."),
    UpstreamFlag("cache_dir", "", "Set the environment variable HF_HOME instead."),
    UpstreamFlag("model_revision", "", "Download the revision with `hf download` and name its folder."),
    UpstreamFlag("use_fast_tokenizer", "", "Tokenizers are always the fast ones."),
    UpstreamFlag("trust_remote_code", "", "Code from a checkpoint is never run."),
    UpstreamFlag("ignore_mismatched_sizes", "", "A head with other labels is replaced by a new one, with a message."),
    UpstreamFlag("low_cpu_mem_usage", "", "Weights are always loaded without a second copy."),
    UpstreamFlag("preprocessing_num_workers", "--dataloader_num_workers N", ""),
    UpstreamFlag("overwrite_cache", "", "The cache of tokenized data is keyed by content, so it is never out of date."),
    UpstreamFlag("pad_to_max_length", "--packing false", "Padded batches are only needed for static shapes."),
    UpstreamFlag("max_length", "--max_seq_length N", ""),
    UpstreamFlag("block_size", "--max_seq_length N", ""),
    UpstreamFlag("max_predict_samples", "--max_eval_samples N", ""),
    UpstreamFlag("max_val_samples", "--max_eval_samples N", ""),
    UpstreamFlag("validation_split_percentage", "--validation_fraction X", "It is a fraction: 0.05 for 5."),
)
_CLASSIFICATION = (
    UpstreamFlag("text_column_name", "--text_columns NAME", "For a pair of texts, name both columns."),
    UpstreamFlag("text_column_names", "--text_columns NAME ...", "Names are separated by spaces, not commas."),
    UpstreamFlag("label_column_name", "--label_column NAME", ""),
    UpstreamFlag("do_regression", "--regression", ""),
    UpstreamFlag("metric_name", "", "Each kind of task has its metrics; results.json contains all of them."),
    UpstreamFlag("shuffle_train_dataset", "", "Training rows are always shuffled, in an order that --seed decides."),
)
_QUESTION_ANSWERING = (
    UpstreamFlag("version_2_with_negative", "--task_name squad_v2", ""),
    UpstreamFlag("question_column_name", "", "Use SQuAD's JSON format; its fields have fixed names."),
    UpstreamFlag("context_column_name", "", "Use SQuAD's JSON format; its fields have fixed names."),
    UpstreamFlag("answer_column_name", "", "Use SQuAD's JSON format; its fields have fixed names."),
)
_TAGGING = (
    UpstreamFlag("return_entity_level_metrics", "", "Scores of each entity type are always in results.json."),
    UpstreamFlag("label_all_tokens", "", "The first piece of a word carries its tag, as in the paper."),
)
_PRETRAINING = (
    UpstreamFlag("mlm_probability", "--masked_lm_prob X", ""),
    UpstreamFlag("mlm", "", "Masked language modeling is the default of run_pretraining."),
    UpstreamFlag("line_by_line", "", "prepare_corpus finds documents and sentences; see --sentence_splitter there."),
    UpstreamFlag("streaming", "", "The prepared corpus is read from disk as it is needed; it may exceed the memory."),
    UpstreamFlag("model_type", "", "The model is always a BERT."),
    UpstreamFlag("config_overrides", "--hidden_size N", "Each setting of the model is a flag of its own."),
)

UPSTREAM_FLAGS: dict[str, tuple[UpstreamFlag, ...]] = {
    "Training (TrainingArguments)": _TRAINING,
    "Model and data (all scripts)": _SCRIPTS,
    "run_glue, run_classification": _CLASSIFICATION,
    "run_qa": _QUESTION_ANSWERING,
    "run_ner": _TAGGING,
    "run_mlm": _PRETRAINING,
}
"""Section of the page -> its flags."""


def upstream_advice(name: str) -> str | None:
    """Returns what to do instead of a flag of transformers, or None if it is not one that differs.

    Args:
        name: the flag without dashes, with underscores.
    """
    for flags in UPSTREAM_FLAGS.values():
        for upstream_flag in flags:
            if upstream_flag.name == name:
                return upstream_flag.advice
    return None
