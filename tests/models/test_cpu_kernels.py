"""Kernels of our own on the CPU, dropout, packed attention, cross-entropy: distribution, gradients, the same values."""

import math

import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from bert_repro import (
    BertReproForPreTraining,
    BertReproForSequenceClassification,
    BertReproForTokenClassification,
)
from bert_repro.models.cpu_kernels import (
    MANY_CLASSES,
    CpuDropout,
    CrossEntropyByRows,
    PackedAttention,
    token_cross_entropy,
    use_cpu_kernels,
)
from bert_repro.models.modeling_bert_repro import mean_cross_entropy

LENGTHS = [5, 1, 7]
LIKE = [3, 0, 7, 5, 5, 6, 1]  # one group, with padding
UNLIKE = [5, 1, 400, 5, 390, 0]  # two groups


def draws(seed=0, dtype=torch.float64, lengths=LENGTHS):
    torch.manual_seed(seed)
    return [torch.randn(1, 2, sum(lengths), 4, dtype=dtype, requires_grad=True) for _ in range(3)]


def loop_over_sequences(query, key, value, causal=False, lengths=LENGTHS):
    sequences = zip(*(states.split(lengths, dim=2) for states in (query, key, value)), strict=True)
    attended = [F.scaled_dot_product_attention(*states, is_causal=causal, scale=0.5) for states in sequences]
    return torch.cat(attended, dim=2).transpose(1, 2)


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_dropout_drops_as_many_and_keeps_the_mean(probability, dtype):
    torch.manual_seed(1)
    number = 301_001  # no multiple of four
    dropped = CpuDropout(probability).train()(torch.ones(number, dtype=dtype))
    zeros = int((dropped == 0).sum())
    low, high = stats.binom.interval(0.9999, number, probability)
    assert low <= zeros <= high
    (value,) = dropped[dropped != 0].unique().tolist()
    assert math.isclose(value, 1 / (1 - probability), rel_tol=2 * torch.finfo(dtype).eps + 2e-4)
    runs = (dropped == 0).view(-1)[: number // 4 * 4].view(-1, 4).sum(1)  # four draws share a random number
    expected = stats.binom.pmf(range(5), 4, probability) * len(runs)
    assert stats.chisquare(torch.bincount(runs, minlength=5).numpy(), expected).pvalue > 1e-4


def test_dropout_passes_gradients_where_it_keeps():
    states = torch.randn(6, 7, dtype=torch.float64, requires_grad=True)
    layer = CpuDropout(0.5).train()

    def same_draws(states):
        torch.manual_seed(3)
        return layer(states.transpose(0, 1))

    assert torch.autograd.gradcheck(same_draws, states)
    assert torch.autograd.gradgradcheck(same_draws, states)
    same_draws(states).sum().backward()
    assert set(states.grad.unique().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("causal", [False, True])
def test_packed_attention_has_the_gradients_of_its_forward_pass(causal):
    def attend(query, key, value):
        torch.manual_seed(4)
        return PackedAttention.apply(query, key, value, LENGTHS, 0.5, 0.4, causal)

    assert torch.autograd.gradcheck(attend, draws())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [[4, 4, 4], LENGTHS, LIKE, UNLIKE], ids=["equal", "few", "like", "unlike"])
def test_groups_of_sequences_attend_as_each_by_itself(lengths, causal):
    states = draws(dtype=torch.float32, lengths=lengths)
    grad = torch.randn(1, sum(lengths), 2, 4)
    attended = PackedAttention.apply(*states, lengths, 0.5, 0.0, causal), loop_over_sequences(*states, causal, lengths)
    results = [[each, *torch.autograd.grad(each, states, grad)] for each in attended]
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)


def test_packed_attention_in_half_precision_is_as_exact_as_pytorch():
    exact = draws(dtype=torch.float32)
    halves = [states.detach().bfloat16().requires_grad_() for states in exact]
    truth = [states.detach().double().requires_grad_() for states in halves]
    grad = torch.randn(1, sum(LENGTHS), 2, 4).bfloat16()

    def results(attend, states, grad):
        attended = attend(*states)
        return [attended, *torch.autograd.grad(attended, states, grad)]

    expected = results(loop_over_sequences, truth, grad.double())
    theirs = results(loop_over_sequences, halves, grad)
    with torch.autocast("cpu", torch.bfloat16):  # as the step calls it
        ours = results(lambda *states: PackedAttention.apply(*states, LENGTHS, 0.5, 0.0, False), halves, grad)
    for right, own, other in zip(expected, ours, theirs, strict=True):
        assert own.dtype == torch.bfloat16
        assert (own - right).norm() <= 1.5 * (other - right).norm() + 1e-3 * right.norm()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_cross_entropy_by_rows_equals_pytorchs(dtype, scale):
    torch.manual_seed(6)
    rows = 2 * CrossEntropyByRows.ROWS + 3
    logits = (5 * torch.randn(1, rows, MANY_CLASSES, dtype=torch.float64)).to(dtype)
    labels = torch.randint(0, MANY_CLASSES, (1, rows))
    labels[0, ::5] = -100
    logits[0, 1, labels[0, 1]] = -300  # a share too small for a number in 32 bits
    results = []
    for function in (token_cross_entropy, mean_cross_entropy):
        given = logits.clone().requires_grad_()
        loss = function(given, labels)
        assert ("ByRows" in str(loss.grad_fn)) == (function is token_cross_entropy)
        results.append((loss, *torch.autograd.grad(loss * scale, given)))
    (loss, grad), (expected, expected_grad) = results
    precision = 1e-12 if dtype == torch.float64 else 1e-6
    torch.testing.assert_close(loss, expected, rtol=precision, atol=0)
    one_digit = 2**-7 if dtype == torch.bfloat16 else precision
    torch.testing.assert_close(grad, expected_grad, rtol=one_digit, atol=1e-9)
    assert not grad[0, ::5].any()


@pytest.fixture
def inputs(tiny):
    batch = tiny.pack(tiny.batch((11,) * 20))
    labels = torch.where(batch["position_ids"] == 1, batch["input_ids"], -100)
    return {**batch, "labels": labels, "prediction_positions": (labels.flatten() != -100).nonzero()[:, 0]}


def word_gradient(model, inputs):
    torch.manual_seed(5)
    model(**inputs).loss.backward()
    return model.bert.embeddings.word_embeddings.weight.grad


def test_recomputed_layers_drop_the_same(tiny, inputs):
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = BertReproForPreTraining(tiny.config(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.3)).train()
        use_cpu_kernels(model)
        if checkpointing:
            model.gradient_checkpointing_enable()
        gradients.append(word_gradient(model, inputs))
    assert torch.equal(*gradients)


def test_added_tokens_change_no_gradient_and_few_shapes_occur(tiny):
    torch.manual_seed(0)
    config = tiny.config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model, shapes, results = BertReproForPreTraining(config).train(), [], []
    model.bert.encoder.layer[0].register_forward_pre_hook(lambda layer, args: shapes.append(args[0].shape[1]))
    batches = [tiny.pack(tiny.batch((11,) * sequences)) for sequences in (7, 9)]
    for kernels in (False, True):
        if kernels:
            use_cpu_kernels(model)
        for batch in batches:
            model.zero_grad()
            model(**batch, labels=torch.where(batch["position_ids"] == 1, batch["input_ids"], -100)).loss.backward()
            results.append([each.grad for each in model.bert.encoder.parameters()])
    assert shapes == [77, 99, 78, 100]
    for ours, plain in zip(results[2:], results[:2], strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        assert model.eval()(**batches[0]).prediction_logits.shape[1] == 77


@pytest.mark.parametrize("pool_token", ["first", "last"])
def test_the_last_layer_computes_only_what_the_head_reads(tiny, pool_token):
    config = tiny.config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pool_token=pool_token)
    batch, sequences = tiny.pack(tiny.batch((11,) * 20)), 20
    masked = torch.arange(sequences) * 11 + 3
    labels = torch.full_like(batch["input_ids"], -100)
    labels[0, masked] = batch["input_ids"][0, masked]
    heads = {
        BertReproForPreTraining: {
            "labels": labels,
            "prediction_positions": F.pad(masked, (0, 12)),
            "next_sentence_label": torch.arange(sequences) % 2,
        },
        BertReproForSequenceClassification: {"labels": torch.arange(sequences) % 2},
        BertReproForTokenClassification: {"labels": batch["input_ids"] % 2},
    }
    for (head, answers), computed in zip(heads.items(), (64, 64, 220), strict=True):
        torch.manual_seed(0)
        model, results, shapes = head(config).train(), [], []
        last = model.bert.encoder.layer[-1].output
        last.register_forward_hook(lambda *call, shapes=shapes: shapes.append(call[2].shape[1]))
        for kernels in (False, True):
            if kernels:
                use_cpu_kernels(model)
            model.zero_grad()
            output = model(**batch, **answers)
            output.loss.backward()
            gradients = [each.grad for each in model.parameters() if each.grad is not None]
            results.append([output.loss, *gradients])
        assert shapes == [220, computed]
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-6)
        shown = model(**batch, **answers, output_hidden_states=True).hidden_states[-1]
        assert shown.shape[1] == 220 and shown.any(-1).all()


def test_an_encoder_called_by_itself_computes_every_token(tiny):
    config = tiny.config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model, batch = BertReproForSequenceClassification(config).train(), tiny.pack(tiny.batch((11,) * 19))
    alone = model.bert(**batch).last_hidden_state
    use_cpu_kernels(model)
    for _ in range(2):
        model(**batch)
        torch.testing.assert_close(model.bert(**batch).last_hidden_state, alone, rtol=1e-4, atol=1e-6)
