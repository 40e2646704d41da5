"""Parameter counts and the distribution that weights start from."""

import pytest
import torch
from scipy import stats

from bert_repro import BertReproConfig, BertReproForPreTraining, BertReproModel


def parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "count"),
    [
        (3, 768, 12, 45_691_392),
        (6, 768, 3, 66_955_008),
        (6, 768, 12, 66_955_008),
        (12, 768, 12, 109_482_240),
        (12, 1024, 16, 183_987_200),
        (24, 1024, 16, 335_141_888),
    ],
)
def test_parameter_counts_of_table_6(layers, hidden, heads, count):
    config = BertReproConfig(
        num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads, intermediate_size=4 * hidden
    )
    with torch.device("meta"):
        encoder = BertReproModel(config)
        pre_training = BertReproForPreTraining(config)
    assert parameters(encoder) == count
    assert parameters(pre_training) - count == {768: 624_188, 1024: 1_084_220}[hidden]


@pytest.fixture(scope="module")
def model() -> BertReproForPreTraining:
    torch.manual_seed(0)
    return BertReproForPreTraining(
        BertReproConfig(vocab_size=3000, hidden_size=128, num_hidden_layers=2, num_attention_heads=2)
    )


def test_matrices_are_truncated_normal_biases_zero_and_norms_the_identity(model):
    for name, values in model.named_parameters():
        if values.dim() == 2:
            assert (0.015 < values.std() < 0.02 and abs(values.mean()) < 0.001) or values.numel() < 1000, name
            assert values.abs().max() <= 0.04 + 1e-8, name
            assert (values[0] != 0).all(), f"{name}: the padding row is drawn like any other"
    values = model.bert.embeddings.word_embeddings.weight.detach().flatten().numpy()
    assert stats.kstest(values, stats.truncnorm(-2, 2, scale=0.02).cdf).pvalue > 0.01
    for name, values in model.named_parameters():
        if values.dim() == 1:
            assert (values == (1.0 if name.endswith("LayerNorm.weight") else 0.0)).all(), name
