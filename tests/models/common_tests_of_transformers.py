# ruff: noqa: E402
"""transformers' own tests of every model, on our nine classes: `make test-common`.

    python tests/models/common_tests_of_transformers.py [arguments of pytest]

The tests are in the source archive of the installed transformers, which pip fetches, and are used as they are. The
archive leaves out three of the files that they import: tests of generation and of exporters, which are mixed into
them, and a list of values, which is given below.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

LEFT_OUT = {
    "exporters/test_export.py": "class ExportTesterMixin:\n    pass\n",
    "generation/test_utils.py": "class GenerationTesterMixin:\n    pass\n",
    "utils/test_configuration_utils.py": """config_common_kwargs = {
    "return_dict": False, "output_hidden_states": True, "dtype": "float16", "chunk_size_feed_forward": 5,
    "architectures": ["BertModel"], "id2label": {0: "a"}, "label2id": {"a": 0}, "problem_type": "regression",
    "tie_word_embeddings": False, "is_decoder": True, "bos_token_id": 6, "pad_token_id": 7, "eos_token_id": 8,
}
""",
}
PACKAGE = "tests_of_transformers"


def main() -> int:
    """Fetches the tests, runs them, and returns pytest's exit code."""
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        archive = f"transformers=={transformers.__version__}"
        source_only = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", root]
        subprocess.run([*pip, "download", "--quiet", *source_only, archive], check=True)
        # A test of transformers needs it; it is no dependency of ours.
        subprocess.run([*pip, "install", "--quiet", "--no-deps", "--target", root, "parameterized"], check=True)
        unpack(next(root.glob("transformers-*.tar.gz")), root / PACKAGE)
        path = os.pathsep.join([folder, str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")])
        tests = shutil.copy(__file__, root / "test_models.py")  # away from our own settings of pytest
        command = [sys.executable, "-m", "pytest", "-c", os.devnull, "-p", "no:cacheprovider", tests, *sys.argv[1:]]
        return subprocess.run(command, env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}).returncode


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks `tests/*.py` of an archive, and adds what it leaves out."""
    folder.mkdir()
    with tarfile.open(archive) as files:
        for entry in files:
            parts = Path(entry.name).parts
            if len(parts) == 3 and parts[1] == "tests" and parts[2].endswith(".py"):
                content = files.extractfile(entry)
                (folder / parts[2]).write_bytes(content.read() if content else b"")
    for name, text in {**LEFT_OUT, "__init__.py": ""}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).parent.joinpath("__init__.py").touch()


if __name__ == "__main__":
    sys.exit(main())

import unittest

import torch
import transformers
from tests_of_transformers.test_configuration_common import ConfigTester
from tests_of_transformers.test_modeling_common import ModelTesterMixin

import bert_repro
from bert_repro.models.configuration_bert_repro import AUTO_CLASSES

for _auto_class, _head in AUTO_CLASSES.items():  # the tests find out what a class is for by its name
    getattr(transformers, _auto_class)._model_mapping._model_mapping["bert_repro"] = _head.ours


class Sizes:
    """The tiny model that the tests ask for, by the names that they use."""

    batch_size, seq_length, num_choices, num_labels = 13, 7, 4, 3
    hidden_size, num_hidden_layers, num_attention_heads, expected_num_hidden_layers = 32, 2, 4, 3
    is_training = True

    def get_config(self) -> bert_repro.BertReproConfig:
        return bert_repro.BertReproConfig(
            vocab_size=99, hidden_size=self.hidden_size, num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads, intermediate_size=37, max_position_embeddings=512,
            type_vocab_size=16, num_labels=self.num_labels,
        )  # fmt: skip

    def prepare_config_and_inputs_for_common(self):
        generator = torch.Generator().manual_seed(0)
        shape = (self.batch_size, self.seq_length)
        ids = torch.randint(0, 99, shape, generator=generator)
        segments = torch.randint(0, 16, shape, generator=generator)
        mask = torch.ones(shape, dtype=torch.long).tril()
        return self.get_config(), {"input_ids": ids, "token_type_ids": segments, "attention_mask": mask}


class BertReproModelTest(ModelTesterMixin, unittest.TestCase):
    """All tests of models, on all nine classes."""

    all_model_classes = tuple(getattr(bert_repro, head.ours) for head in AUTO_CLASSES.values())

    # Nothing is cached: every step of `generate` reads the complete sequence. tests/models/test_left_to_right.py.
    all_generative_model_classes = ()

    def setUp(self) -> None:
        self.model_tester = Sizes()

    def _prepare_for_class(self, inputs_dict, model_class, return_labels=False):
        inputs = super()._prepare_for_class(inputs_dict, model_class, return_labels=return_labels)
        if return_labels and model_class is bert_repro.BertReproForPreTraining:  # as transformers' tests of BERT do
            inputs["labels"] = torch.zeros((Sizes.batch_size, Sizes.seq_length), dtype=torch.long)
            inputs["next_sentence_label"] = torch.zeros(Sizes.batch_size, dtype=torch.long)
        return inputs

    def test_config(self) -> None:
        # A width that no model of twelve heads has, as in transformers' own test of BERT.
        ConfigTester(self, config_class=bert_repro.BertReproConfig, hidden_size=37).run_common_tests()
