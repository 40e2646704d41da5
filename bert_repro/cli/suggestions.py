"""Answers to flags that a recipe does not have: what the same thing is called here, or how it is done."""

import difflib
import re
from collections.abc import Collection, Iterable, Sequence

from bert_repro.utils.readers import shown

_ELSEWHERE = {
    "fp16": "write --mixed_precision fp16",
    "bf16": "write --mixed_precision bf16",
    "amp": "write --mixed_precision bf16",
    "precision": "write --mixed_precision",
    "half": "write --mixed_precision fp16",
    "dtype": "write --mixed_precision",
    "torch_dtype": "write --mixed_precision",
    "tf32": "leave it out; --mixed_precision bf16 is faster still",
    "lr": "write --learning_rate",
    "epochs": "write --num_train_epochs",
    "num_epochs": "write --num_train_epochs",
    "n_epochs": "write --num_train_epochs",
    "steps": "write --max_steps",
    "num_train_steps": "write --max_steps",
    "max_train_steps": "write --max_steps",
    "batch_size": "write --train_batch_size (over all devices) or --per_device_train_batch_size",
    "bs": "write --train_batch_size (over all devices) or --per_device_train_batch_size",
    "eval_batch_size": "write --per_device_eval_batch_size",
    "grad_accum": "write --gradient_accumulation_steps",
    "accumulate_grad_batches": "write --gradient_accumulation_steps",
    "max_length": "write --max_seq_length",
    "max_len": "write --max_seq_length",
    "block_size": "write --max_seq_length",
    "model": "write --model_name_or_path",
    "model_name": "write --model_name_or_path",
    "model_path": "write --model_name_or_path",
    "pretrained_model_name_or_path": "write --model_name_or_path",
    "checkpoint": "write --model_name_or_path to start from a model, --resume_from_checkpoint to resume a run",
    "tokenizer": "write --tokenizer_name",
    "train_dataset": "write --train_file",
    "dataset": "write --train_file and --validation_file, or --task_name",
    "dataset_name": "write --train_file and --validation_file, or --task_name",
    "task": "write --task_name",
    "train_data": "write --train_file",
    "eval_file": "write --validation_file",
    "eval_dataset": "write --validation_file",
    "dev_file": "write --validation_file",
    "dev": "write --validation_file",
    "val": "write --validation_file",
    "validation": "write --validation_file",
    "valid_file": "write --validation_file",
    "text_column": "write --text_columns",
    "text_column_name": "write --text_columns",
    "sentence1_key": "write --text_columns with one or two names",
    "label_column_name": "write --label_column",
    "num_labels": "leave it out: --train_file says which labels there are",
    "label_names": "leave it out: --train_file says which labels there are",
    "labels": "leave it out: --train_file says which labels there are",
    "output": "write --output_dir",
    "out_dir": "write --output_dir",
    "save_dir": "write --output_dir",
    "overwrite": "write --overwrite_output_dir",
    "train": "write --train_file FILE, or --do_train with --task_name or --data_dir",
    "test": "write --test_file FILE, or --do_predict with --task_name or --data_dir",
    "eval": "write --do_eval",
    "evaluate": "write --do_eval",
    "predict": "write --do_predict",
    "resume": "write --resume_from_checkpoint latest",
    "device": "leave it out: the GPU is used where there is one; CUDA_VISIBLE_DEVICES= (empty) for the CPU",
    "no_cuda": "set CUDA_VISIBLE_DEVICES= (empty) to use the CPU",
    "use_cpu": "set CUDA_VISIBLE_DEVICES= (empty) to use the CPU",
    "gpus": "start with accelerate launch --num_processes N",
    "n_gpu": "start with accelerate launch --num_processes N",
    "num_gpus": "start with accelerate launch --num_processes N",
    "local_rank": "start with accelerate launch or torchrun, which need no flag",
    "ddp": "start with accelerate launch or torchrun",
    "multi_gpu": "start with accelerate launch or torchrun",
    "deepspeed": "not supported; --fsdp shards weights, gradients and optimizer state",
    "evaluation_strategy": "write --eval_steps N; the end is evaluated with --do_eval",
    "eval_strategy": "write --eval_steps N; the end is evaluated with --do_eval",
    "save_strategy": "write --save_steps N",
    "logging_strategy": "write --logging_steps N",
    "load_best_model_at_end": "only fine-tuning has it",
    "metric_for_best_model": "leave it out: the task's own metric decides",
    "greater_is_better": "leave it out: the task's own metric decides",
    "save_best": "write --load_best_model_at_end",
    "early_stopping_patience": "only fine-tuning has it",
    "early_stopping": "write --early_stopping_patience",
    "patience": "write --early_stopping_patience",
    "freeze": "write --freeze_layers",
    "freeze_encoder": "write --freeze_layers",
    "llrd": "write --layerwise_lr_decay",
    "label_smoothing_factor": "write --label_smoothing",
    "class_weight": "write --class_weights",
    "weights": "write --class_weights",
    "balanced": "write --class_weights balanced",
    "multilabel": "write --multi_label",
    "problem_type": "write --multi_label or --regression; without them each row has one label",
    "loss": "leave it out: cross-entropy; see --class_weights, --label_smoothing, --multi_label, --regression",
    "validation_split": "write --validation_fraction",
    "test_size": "write --validation_fraction",
    "warmup": "write --warmup_ratio or --warmup_steps",
    "lr_scheduler_type": "leave it out: linear decay after the warm-up, as in the paper; see --decay_from",
    "scheduler": "leave it out: linear decay after the warm-up, as in the paper; see --decay_from",
    "optim": "leave it out: BERT's Adam, see --adam_beta1, --bias_correction, --weight_decay",
    "optimizer": "leave it out: BERT's Adam, see --adam_beta1, --bias_correction, --weight_decay",
    "clip": "write --max_grad_norm",
    "max_norm": "write --max_grad_norm",
    "wd": "write --weight_decay",
    "eps": "write --adam_epsilon",
    "num_workers": "write --dataloader_num_workers",
    "workers": "write --dataloader_num_workers / write --num_proc",
    "group_by_length": "leave it out: --packing computes nothing on padding",
    "auto_find_batch_size": "write --per_device_train_batch_size; results do not depend on it",
    "cache_dir": "set HF_HOME to keep downloads elsewhere",
    "preprocessing_num_workers": "leave it out: tokens are kept and found again",
    "lora": "write --peft lora",
    "use_lora": "write --peft lora",
    "use_peft": "write --peft lora",
    "lora_rank": "write --lora_r",
    "target_modules": "write --peft_target_modules",
    "lora_target_modules": "write --peft_target_modules",
    "compile": "write --torch_compile",
    "mlm_probability": "write --masked_lm_prob",
    "mlm_prob": "write --masked_lm_prob",
    "num_layers": "write --num_hidden_layers",
    "num_heads": "write --num_attention_heads",
    "hidden_dim": "write --hidden_size",
    "dropout": "write --hidden_dropout_prob and --attention_probs_dropout_prob",
    "wandb": "write --report_to wandb",
    "use_wandb": "write --report_to wandb",
    "tracker": "write --report_to",
    "tracker_name": "write --report_to",
    "log_with": "write --report_to",
    "logging_dir": "leave it out: TensorBoard's files are in the output folder",
    "wandb_project": "write --project",
    "wandb_run_name": "write --run_name",
    "experiment_name": "write --run_name and --project",
    "pad_to_max_length": "write --packing false for padded batches",
    "do_lower_case": "leave it out: the tokenizer knows",
    "cased": "leave it out: the tokenizer knows",
    "trust_remote_code": "leave it out: code of a checkpoint is never run",
    "token": "log in with hf auth login, or set HF_TOKEN; no flag takes a token",
    "hub_token": "log in with hf auth login, or set HF_TOKEN; no flag takes a token",
    "use_auth_token": "log in with hf auth login, or set HF_TOKEN; no flag takes a token",
    "repo_id": "write --hub_model_id",
    "push": "write --push_to_hub",
    "private": "write --hub_private_repo",
    "input": "write --input_file",
    "files": "write --input_files",
    "vocab": "write --tokenizer",
}
"""Flag as users of transformers and other trainers type it, without dashes -> what to do here; of several answers,
divided by a slash, the first whose flags the recipe has."""

IN_FILES = {
    "phases": "phases are set in a YAML file: --config FILE with a line such as phases: [{max_seq_length: 128, steps: "
    "900, batch: 32}, {max_seq_length: 512, steps: 100, batch: 32}]",
}
"""Setting that has no flag, as its values are mappings -> how it is written."""

_RECIPES = {
    "train": "pretrain, or classify, tag, answer, choose to fine-tune",
    "finetune": "classify, tag, answer or choose",
    "fine_tune": "classify, tag, answer or choose",
    "evaluate": "classify, tag, answer or choose, with --do_eval or --validation_file",
    "eval": "classify, tag, answer or choose, with --do_eval or --validation_file",
    "score": "classify, tag, answer or choose, with --do_eval or --validation_file",
    "test": "classify, tag, answer or choose, with --do_eval or --validation_file",
    "ner": "tag",
    "pos": "tag",
    "token_classification": "tag",
    "qa": "answer",
    "question_answering": "answer",
    "sentiment": "classify",
    "text_classification": "classify",
    "regression": "classify",
    "multiple_choice": "choose",
    "mlm": "pretrain",
    "infer": "predict",
    "inference": "predict",
    "generate": "predict",
    "run": "predict",
    "embed": "extract_features",
    "embeddings": "extract_features",
    "encode": "extract_features",
    "onnx": "export_onnx",
    "export": "export_onnx",
    "convert": "convert_checkpoint",
    "upload": "push_to_hub",
    "publish": "push_to_hub",
    "push": "push_to_hub",
    "corpus": "prepare_corpus",
    "tokenize": "prepare_corpus",
    "preprocess": "prepare_corpus",
    "demo": "quickstart",
}
"""Word that somebody types after `bert-repro` -> the recipes for it."""


def answer_unknown(words: Sequence[str], known: Collection[str]) -> str:
    """Returns one line about everything on a command line that a recipe does not know.

    Args:
        words: what is left of the command line.
        known: names of the recipe's settings, without dashes.
    """
    flags = [word.split("=")[0] for word in words if _is_flag(word)]
    if not flags:
        return f"{shown(words[0])} is not expected here; every setting is a flag (see --help)"
    answers = [(flag, _answer(flag.lstrip("-").replace("-", "_"), known)) for flag in dict.fromkeys(flags)]
    if len(answers) == 1:
        return f"unknown flag {answers[0][0]}; {answers[0][1]}"
    return "unknown flags: " + ", ".join(f"{flag} ({answer})" for flag, answer in answers)


def meant_recipe(word: str, known: Collection[str]) -> str | None:
    """Returns the recipe that a mistyped word most resembles, or the recipes for it, or None."""
    if word in _RECIPES:
        return _RECIPES[word]
    parts = [name for name in known if word in name.split("_")]
    return parts[0] if len(parts) == 1 else next(iter(difflib.get_close_matches(word, known, n=1, cutoff=0.65)), None)


def closest(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that a mistyped one most resembles, or None."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def _answer(name: str, known: Collection[str]) -> str:
    for answer in _ELSEWHERE[name].split(" / ") if name in _ELSEWHERE else ():
        if all(flag in known for flag in re.findall(r"--(?!num_processes)(\w+)", answer)):
            return answer
    close = closest(name, known)
    if close in IN_FILES:
        return IN_FILES[close]
    return f"did you mean --{close}?" if close else "see --help"


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-\.?\d[\d.e-]*", word)
