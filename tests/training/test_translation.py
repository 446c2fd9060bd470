"""Translation against plain loops: padding counts nowhere, the search finds the best, BLEU adds up."""

import itertools
import math

import pytest
import sacrebleu
import torch
from torch import nn

from decentnode.datasets import Parallel, samples
from decentnode.datasets.base import LoadedDataset, Samples
from decentnode.errors import BadInput
from decentnode.models import Transformer, initial_model
from decentnode.models.base import check_padding
from decentnode.training.evaluation import evaluate, evaluation_mode
from decentnode.training.objective import Objective
from decentnode.training.tasks import Translation
from decentnode.training.tasks.beam_search import BeamSearch

END, VOCABULARY, MOST = 0, 4, 4


def scores_after(row, beginning):
    """The scores of the next id, whatever they are."""
    drawn = torch.Generator().manual_seed(hash((row, *beginning)) % 2**31)
    return 2 * torch.randn(VOCABULARY, generator=drawn, dtype=torch.float64)


def step(rows, ids):
    return torch.stack(
        [scores_after(row, tuple(some)) for row, some in zip(rows.tolist(), ids.tolist(), strict=True)]
    )


def all_texts():
    for length in range(1, MOST + 1):
        for text in itertools.product(range(VOCABULARY), repeat=length):
            if END not in text[:-1] and (text[-1] == END or length == MOST):
                yield text


def judged(row, text, alpha):
    total = 0.0
    for place, id in enumerate(text):
        total += scores_after(row, (9, *text[:place])).log_softmax(0)[id].item()
    return total / ((5 + len(text)) / 6) ** alpha


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_a_search_of_all_beams_finds_the_best_text_and_one_beam_is_greedy(alpha):
    begin, most, beats = torch.full((5,), 9), torch.full((5,), MOST), []
    search = BeamSearch(VOCABULARY**MOST, alpha, END)
    texts = search(step, begin, most, lambda: beats.append(1))
    assert 1 <= len(beats) <= MOST
    for row, text in enumerate(texts):
        best = max(all_texts(), key=lambda other: judged(row, other, alpha))
        assert tuple(text) == best
    for row, text in enumerate(BeamSearch(1, alpha, END)(step, begin, most, lambda: None)):
        greedy = [9]
        while len(greedy) <= MOST and greedy[-1] != END:
            greedy.append(int(scores_after(row, tuple(greedy)).argmax()))
        assert text == greedy[1:]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    samples.parallel(folder, pairs=40)
    return Parallel(path=folder, vocabulary=280).load(0)


@pytest.fixture(scope="module")
def network(corpus):
    model = Transformer(layers=1, heads=2, width=8, hidden=8, padding=0)
    return initial_model(model, corpus.shape, corpus.num_classes, seed=1, dtype=torch.float64)


def test_metrics_are_those_of_the_sentences_one_by_one(corpus, network):
    loss = nn.CrossEntropyLoss(label_smoothing=0.3)
    task = Translation(bleu=6, beams=2, longer=1)
    test = corpus.to(torch.float64).test
    scores = [evaluate(Objective(network, loss, task), test, size) for size in (1, 4, 10)]
    smoothed, plain, right, count = 0.0, 0.0, 0, 0
    with evaluation_mode(network), torch.no_grad():
        for row in range(len(test)):
            (source, target), labels = test.batch(torch.tensor([row])).fields, test.labels.index_select(
                0, torch.tensor([row])
            )  # fmt: skip
            logs = network(source, target)[0].log_softmax(0)
            chosen = logs.gather(0, labels)[0]
            smoothed -= (0.7 * chosen.sum() + 0.3 * logs.mean(0).sum()).item()
            plain -= chosen.sum().item()
            right += int((logs.argmax(0) == labels[0]).sum())
            count += labels.numel()
    expected = {
        "loss": smoothed / count, "accuracy": right / count, "perplexity": math.exp(plain / count),
        "bleu": scores[0]["bleu"],
    }  # fmt: skip
    for metrics in scores:
        assert metrics == pytest.approx(expected, rel=1e-10)
        assert list(metrics) == [metric.name for metric in task.metrics(corpus.num_classes)]


def test_bleu_is_that_of_sacrebleu_and_adds_up(corpus):
    vocabulary, test = corpus.test.vocabulary, corpus.test
    task = Translation(bleu=True, beams=1)
    references = [
        vocabulary.text(row.tolist()) for row in test.batch(torch.arange(len(test))).labels.clamp(min=0)
    ]
    sources = {tuple(test.batch(torch.tensor([row])).fields[0][0].tolist()): row for row in range(len(test))}
    answers = [test.labels.index_select(0, torch.tensor([row]))[0].tolist() for row in range(len(test))]
    # Of every third sentence the last word is missing.
    answers = [ids[:-3] + ids[-1:] if row % 3 == 0 else ids for row, ids in enumerate(answers)]

    def network(source, ids):
        scores = torch.zeros(len(source), corpus.num_classes, ids.shape[1])
        for place, row in enumerate(source.tolist()):
            answer = answers[sources[tuple(id for id in row if id)]]
            scores[place, answer[min(ids.shape[1], len(answer)) - 1], -1] = 50
        return scores

    expected = sacrebleu.corpus_bleu(list(map(vocabulary.text, answers)), [references]).score
    assert 20 < expected < 100
    more = {"loss": 1.0, "surprise": 1.0, "labels": 1.0, "right": 0.0}
    whole = task.generated(network, test, 4, lambda: None)
    assert task.values(whole | more, 1.0)["bleu"] == pytest.approx(expected, rel=1e-12)
    first, later = torch.arange(len(test)).split(4)[0], torch.arange(4, len(test))
    halves = [task.generated(network, test.subset(part), 3, lambda: None) for part in (first, later)]
    assert {name: halves[0][name] + halves[1][name] for name in whole} == whole


def test_what_does_not_fit_is_one_line(corpus, network):
    plain = Samples(corpus.test.inputs, corpus.test.labels)
    two_fields = (
        "task: translation needs samples with two fields of ids, source and target, and a label for each id "
        "of the target"
    )
    unnamed = Samples(corpus.test.inputs, corpus.test.labels, more=corpus.test.more)
    shorter = Samples(corpus.test.inputs, corpus.test.labels, more=(corpus.test.inputs,))
    unknown = "task.bleu: needs a dataset that knows the text of ids, such as parallel"
    for part, message in ((plain, two_fields), (shorter, two_fields), (unnamed, unknown)):
        with pytest.raises(BadInput) as caught:
            Translation(bleu=True).check(LoadedDataset(part, part, 280, (156,)), nn.CrossEntropyLoss)
        assert str(caught.value) == message
    message = "^training.loss: translation needs CrossEntropyLoss or NLLLoss, not MSELoss$"
    with pytest.raises(BadInput, match=message):
        Translation().check(corpus, nn.MSELoss)
    fields = corpus.to(torch.float64).train.alone_and_padded()
    check_padding(network, *fields)
    network.padding = None
    with pytest.raises(BadInput, match=r"^model: TransformerNetwork: the scores of a sample change with "):
        check_padding(network, *fields)
    network.padding = 0
