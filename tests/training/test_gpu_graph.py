"""What a GPU would compile, seen without one: the packed step is one graph, whatever its batches hold."""

from typing import Any

import numpy as np
import torch
from fake_cuda import fake_gpu, fake_model, to_fake_gpu

from bert_repro import BertReproConfig, BertReproForPreTraining
from bert_repro.pretraining.masking import DataCollatorForBertPreTraining, ExampleBatch
from bert_repro.utils.randomness import draw

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{number}" for number in range(55))]
SHAPE = {"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128}


def packed(*lengths: int) -> dict[str, Any]:
    """A masked batch of random examples of these lengths."""
    from transformers import BertTokenizer

    tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(WORDS)})
    sizes = np.array(lengths)
    tokens = np.random.default_rng(0).integers(5, len(WORDS), sizes.sum()).astype(np.int32)
    keys, labels = draw(0, np.arange(len(sizes))), np.zeros(len(sizes), dtype=np.int64)
    collate = DataCollatorForBertPreTraining(tokenizer, packing=True, return_prediction_positions=True)
    return collate(ExampleBatch(tokens, sizes, sizes // 2, labels, keys))


def test_the_packed_pretraining_step_is_one_graph() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(graph)
        return graph.forward

    batches = [packed(24, 9, 17), packed(22, 23, 11), packed(24, 12, 13, 8)]
    torch.compiler.reset()
    with fake_gpu() as mode:
        model = fake_model(BertReproForPreTraining, BertReproConfig(vocab_size=len(WORDS), **SHAPE), mode)
        compiled = torch.compile(model, backend=backend, dynamic=True)
        for batch in batches:
            with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
                output = compiled(**{name: to_fake_gpu(value, mode) for name, value in batch.items()})
            assert output.prediction_logits.shape == (len(batch["prediction_positions"]), len(WORDS))
    assert len(graphs) == 1
    called = [str(node.target) for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert called.count("aten._flash_attention_forward") == SHAPE["num_hidden_layers"]
