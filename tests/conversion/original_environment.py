"""The original code, run by TensorFlow in an environment of its own: `make test-tensorflow`.

    python original_environment.py write ORIGINAL FOLDER   # checkpoints and outputs of the original code
    python original_environment.py golden ORIGINAL FOLDER  # writes tests/golden/tensorflow

ORIGINAL is a clone of https://github.com/google-research/bert; its files are read from two commits: the last with the
erf form of gelu, and the last of all. Needs tensorflow and numpy only, and fails where bert_repro can be imported.
TensorFlow 2 has no `contrib` and no `layers.dense`: the three that the original calls are written again below.
"""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow

tf = tensorflow.compat.v1
COMMITS = {"erf": "f39e881", "tanh": "eedf571"}
LOWER = (
    "the a of and in is was paris capital france cat sat on mat film play ##ing ##ed ##s un ##able , . ? ! ' -".split()
)
UPPER = "The Paris France I Mat".split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
PIECES = [*LETTERS, *(f"##{letter}" for letter in LETTERS)]
SIZES = {
    "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96, "type_vocab_size": 2,
    "max_position_embeddings": 64, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1, "initializer_range": 0.2,
}  # fmt: skip
TINY = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
        "max_position_embeddings": 12}  # fmt: skip
BASE = "uncased_erf_base"
VARIANTS = {
    BASE: ("erf", True, "pretraining"),
    "uncased_erf_pretraining": ("erf", True, "pretraining"),
    "cased_tanh_pretraining": ("tanh", False, "pretraining"),
    "cased_erf_classifier": ("erf", False, "classifier"),
    "uncased_tanh_classifier": ("tanh", True, "classifier"),
    "uncased_erf_squad": ("erf", True, "squad"),
    "cased_tanh_squad": ("tanh", False, "squad"),
}
"""Name -> form of gelu, uncased, head. The one of the paper's size is written where $VOCABULARIES names a folder with
bert-base-uncased/vocab.txt."""
BATCH, LENGTH, LABELS = 4, 12, 3
Fetches = dict[str, Any]


# ------------------------------------------------------------------------------------ what TensorFlow 2 no longer has


def dense(x: Any, units: int, activation: Any = None, name: str | None = None, kernel_initializer: Any = None) -> Any:
    with tf.variable_scope(name, default_name="dense"):
        kernel = tf.get_variable("kernel", [int(x.shape[-1]), units], initializer=kernel_initializer)
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
        y = tf.matmul(x, kernel) + bias
        return activation(y) if activation else y


def layer_norm(inputs: Any, begin_norm_axis: int, begin_params_axis: int, scope: str | None = None) -> Any:
    assert begin_norm_axis == begin_params_axis == -1
    with tf.variable_scope(scope, default_name="LayerNorm"):
        width = [int(inputs.shape[-1])]
        beta = tf.get_variable("beta", width, initializer=tf.zeros_initializer())
        gamma = tf.get_variable("gamma", width, initializer=tf.ones_initializer())
        mean, variance = tf.nn.moments(inputs, [-1], keepdims=True)
        return tf.nn.batch_normalization(inputs, mean, variance, beta, gamma, 1e-12)


class Flags:
    """Takes every definition and keeps the defaults."""

    def __init__(self) -> None:
        self.FLAGS = types.SimpleNamespace()

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda flag="", default=None, *_, **__: setattr(self.FLAGS, flag, default)


def install_shim() -> None:
    shim = types.ModuleType("tensorflow")
    shim.__dict__.update({name: getattr(tf, name) for name in dir(tf) if not name.startswith("__")})
    shim.flags = Flags()
    shim.layers = types.SimpleNamespace(dense=dense)
    shim.contrib = types.SimpleNamespace(layers=types.SimpleNamespace(layer_norm=layer_norm))
    sys.modules["tensorflow"] = shim
    tf.logging.set_verbosity(tf.logging.ERROR)
    tf.disable_v2_tensorshape()


@contextmanager
def original_code(repository: Path, form: str) -> Iterator[Callable[[str], Any]]:
    """Yields a function that imports a module of the original code at the commit of a form of gelu."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["git", "-C", repository, "archive", COMMITS[form]]
        archive = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "x", "-C", folder], input=archive.stdout, check=True)
        modules = [path.stem for path in Path(folder).glob("*.py")]
        for name in modules:
            sys.modules.pop(name, None)
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
        try:
            yield importlib.import_module
        finally:
            sys.path.remove(folder)


# ------------------------------------------------------------------------------------------------------------- models


def vocabulary(uncased: bool) -> list[str]:
    return [*SPECIAL, *LOWER, *([] if uncased else UPPER), *(piece for piece in PIECES if piece not in LOWER)]


def inputs_of(size: int, seed: int) -> dict[str, Any]:
    """Random sequences; the last row is half padding."""
    generator = np.random.default_rng(seed)
    mask = np.ones((BATCH, LENGTH), np.int32)
    mask[-1, LENGTH // 2 :] = 0
    segments = (np.arange(LENGTH) >= LENGTH // 2).astype(np.int32) * mask
    return {
        "input_ids": generator.integers(5, size, (BATCH, LENGTH)).astype(np.int32) * mask,
        "input_mask": mask,
        "segment_ids": segments,
        "positions": np.tile(np.arange(1, 5, dtype=np.int32), (BATCH, 1)),
        "labels": generator.integers(0, 2, BATCH).astype(np.int32),
    }


def build(module: Callable[[str], Any], config: Any, head: str, given: dict[str, Any], training: bool) -> Any:
    """The original's graph of a head: its outputs by name, and the loss."""
    ids, mask, segments = (tf.constant(given[name]) for name in ("input_ids", "input_mask", "segment_ids"))
    if head == "classifier":
        labels = tf.constant(given["labels"])
        loss, _, logits, _ = module("run_classifier").create_model(
            config, training, ids, mask, segments, labels, LABELS, False
        )
        return {"logits": logits}, loss
    if head == "squad":
        start, end = module("run_squad").create_model(config, training, ids, mask, segments, False)
        return {"start_logits": start, "end_logits": end}, tf.reduce_mean(tf.square(start)) + tf.reduce_mean(end)
    model = module("modeling").BertModel(config, training, ids, mask, segments, use_one_hot_embeddings=False)
    ones = tf.ones(given["positions"].shape)
    masked_loss, _, masked = module("run_pretraining").get_masked_lm_output(
        config, model.get_sequence_output(), model.get_embedding_table(), tf.constant(given["positions"]),
        tf.gather(ids, given["positions"], batch_dims=1), ones,
    )  # fmt: skip
    next_loss, _, following = module("run_pretraining").get_next_sentence_output(
        config, model.get_pooled_output(), tf.constant(given["labels"])
    )
    outputs = {"hidden": model.get_sequence_output(), "pooled": model.get_pooled_output(),
               "masked_log_probs": masked, "next_log_probs": following}  # fmt: skip
    return outputs, masked_loss + next_loss


def make(repository: Path, folder: Path, name: str, sizes: dict[str, Any], words: list[str], steps: int = 3) -> None:
    """Trains a model of the original code for some steps and saves it with its optimizer and its outputs."""
    form, _, head = VARIANTS[name]
    folder.mkdir(parents=True)
    settings = {**sizes, "vocab_size": len(words)}
    (folder / "bert_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    given = inputs_of(len(words), seed=len(name))
    with original_code(repository, form) as module:
        config = module("modeling").BertConfig.from_dict(settings)
        with tf.Graph().as_default(), tf.Session() as session:
            tf.set_random_seed(1)
            _, loss = build(module, config, head, given, True)
            train = module("optimization").create_optimizer(loss, 1e-3, 10, 2, False) if steps else None
            session.run(tf.global_variables_initializer())
            for _ in range(steps):
                session.run(train)
            tf.train.Saver().save(session, str(folder / "bert_model.ckpt"), write_meta_graph=False)
    np.savez(folder / "expected.npz", **given, **outputs_of(repository, folder, form, head, given))


def outputs_of(repository: Path, folder: Path, form: str, head: str, given: dict[str, Any]) -> Fetches:
    """Restores a checkpoint into the original's graph, without dropout, and runs it."""
    with original_code(repository, form) as module:
        config = module("modeling").BertConfig.from_json_file(str(folder / "bert_config.json"))
        with tf.Graph().as_default(), tf.Session() as session:
            outputs, _ = build(module, config, head, given, False)
            saved = {name for name, _ in tensorflow.train.list_variables(str(folder / "bert_model.ckpt"))}
            wanted = {variable.op.name: variable for variable in tf.global_variables()}
            # run_squad.py builds a pooler that it does not read; our SQuAD models have none.
            assert all(name in saved or name.startswith("bert/pooler/") for name in wanted), sorted(set(wanted) - saved)
            session.run(tf.global_variables_initializer())
            restored = {name: variable for name, variable in wanted.items() if name in saved}
            tf.train.Saver(restored).restore(session, str(folder / "bert_model.ckpt"))
            return session.run(outputs)


# ----------------------------------------------------------------------------------------------------------- commands


def write(repository: Path, root: Path) -> None:
    """Checkpoints of every variant, and the numbers of the comparison."""
    for name, (_, uncased, _) in VARIANTS.items():
        if name != BASE:
            make(repository, root / name, name, SIZES, vocabulary(uncased))
    if os.environ.get("VOCABULARIES"):
        words = Path(os.environ["VOCABULARIES"], "bert-base-uncased", "vocab.txt").read_text("utf-8").split("\n")[:-1]
        base = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
                "max_position_embeddings": 512, "initializer_range": 0.02}  # fmt: skip
        base = SIZES | base
        make(repository, root / BASE, BASE, base, words, steps=0)
    with original_code(repository, "tanh") as module:
        np.savez(root / "optimizer.npz", **optimizer_steps(module("optimization")))


def golden(repository: Path, root: Path) -> None:
    """The small checkpoint that the default tests read."""
    name = "uncased_erf_pretraining"
    words = vocabulary(uncased=True)
    make(repository, root, name, SIZES | TINY, words, steps=2)
    (root / "checkpoint").unlink(missing_ok=True)


# ------------------------------------------------------------------------------------------------ numbers, side by side


def optimizer_steps(optimization: Any) -> Fetches:
    """Five steps of the original optimizer on given gradients: parameters after each."""
    generator = np.random.default_rng(3)
    shapes = {"bert/embeddings/word_embeddings": (50, 8), "bert/encoder/layer_0/output/dense/kernel": (8, 8),
              "bert/encoder/layer_0/output/dense/bias": (8,), "bert/encoder/layer_0/output/LayerNorm/gamma": (8,),
              "bert/encoder/layer_0/output/LayerNorm/beta": (8,), "cls/predictions/output_bias": (50,),
              "output_weights": (3, 8), "output_bias": (3,)}  # fmt: skip
    starts = {name: generator.standard_normal(shape).astype("f4") for name, shape in shapes.items()}
    gradients = {name: generator.standard_normal((5, *shape)).astype("f4") for name, shape in shapes.items()}
    found: Fetches = {f"start|{name}": values for name, values in starts.items()}
    found |= {f"gradient|{name}": values for name, values in gradients.items()}
    with tf.Graph().as_default(), tf.Session() as session:
        variables = {name: tf.get_variable(name, initializer=values) for name, values in starts.items()}
        step = tf.placeholder(tf.int32, [])
        loss = tf.add_n([tf.reduce_sum(value * tf.gather(gradients[name], step)) for name, value in variables.items()])
        train = optimization.create_optimizer(loss, 1e-2, 10, 2, False)
        session.run(tf.global_variables_initializer())
        for number in range(5):
            session.run(train, {step: number})
            found |= {f"after {number}|{name}": value for name, value in session.run(variables).items()}
    return found


if __name__ == "__main__":
    if importlib.util.find_spec("bert_repro"):
        raise SystemExit("bert_repro can be imported here; this must run where it cannot")
    install_shim()
    {"write": write, "golden": golden}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
