"""The pictures of a card."""

import pytest
from matplotlib import font_manager
from matplotlib.figure import Figure

from bert_repro.hub import plot_fonts, plots

DETAILS = {"labels": ["cold", "$warm$"], "confusion_matrix": [[2, 0], [2, 6]]}
RESULTS = {
    "task": "custom",
    "split": "validation",
    "primary_metric": "accuracy",
    "metrics": {"accuracy": 0.8, "macro_f1": 0.76},
    "splits": {"validation": {"metrics": {"accuracy": 0.8}, "rows_scored": 10, "details": DETAILS}},
    "train": {"steps": 6},
    "data": {"dataset": None, "title": "moods"},
}
ROWS = [
    *({"step": n, "loss": 1 / n, "learning_rate": min(n - 1, 2) / 2 * (7 - n), "tokens": n} for n in range(1, 7)),
    {"step": 3, "eval_accuracy": 0.6, "eval_macro_f1": 0.5},
]


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are saved."""
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **options: (figures.append(self), path.touch()))
    return figures


def test_fine_tuning_shows_loss_dev_score_and_warm_up(tmp_path, drawn):
    plots.plot_training(tmp_path / "training.png", ROWS, RESULTS)
    loss, dev, rate = drawn[0].axes
    title = drawn[0].get_suptitle().replace("\n", " ")
    assert title.endswith(": fine-tuned on moods, 6 steps; accuracy 0.800 on validation")
    assert list(loss.lines[0].get_xdata()) == [1, 2, 3, 4, 5, 6], "every step"
    assert [line.get_label() for line in dev.lines] == ["accuracy", "macro F1"]
    assert list(dev.lines[0].get_xdata()) == [3, 6] and list(dev.lines[0].get_ydata()) == [0.6, 0.8]
    assert rate.get_xlabel() == "optimizer step (shaded: warm-up)"
    assert [patch.get_extents().width > 0 for patch in rate.patches] == [True]


def test_pre_training_has_a_panel_for_each_loss(tmp_path, drawn):
    row = {"loss": 3.0, "nsp_loss": 0.7, "learning_rate": 1e-4}
    rows = [{"step": step, "mlm_loss": 2.0 if step <= 40 else 4.0, **row} for step in range(1, 90)]
    train = {"phases": [{"steps": 40}, {"steps": 49}], "steps": 89}
    results = {"task": "pre-training", "train": train, "metrics": {"mlm_loss": 2.5}}
    plots.plot_training(tmp_path / "training.png", rows, results)
    mlm, nsp, rate = drawn[0].axes
    labels = [axes.get_ylabel() for axes in (mlm, nsp, rate)]
    assert labels == ["MLM loss (nats)", "NSP loss (nats)", "learning rate"]
    assert [line.get_label() for line in mlm.lines[1:]] == ["training, smoothed", "held out", "next phase"]
    assert list(mlm.lines[-1].get_xdata()) == [40, 40]
    assert set(mlm.lines[1].get_ydata()) == {2.0, 4.0}, "no phase is smoothed into the next"
    assert list(mlm.lines[2].get_xdata()) == [89] and list(mlm.lines[2].get_ydata()) == [2.5]


def test_scores_show_confusions(tmp_path, drawn):
    assert plots.plot_scores(tmp_path / "scores.png", RESULTS)
    (confusions,) = drawn[0].axes
    assert sorted(text.get_text() for text in confusions.texts) == ["0", "2", "2", "6"]
    assert [label.get_text() for label in confusions.get_yticklabels()] == ["cold", r"\$warm\$"]
    assert plots.plot_scores(tmp_path / "scores.png", {"splits": {"test": RESULTS["splits"]["validation"]}}), (
        "no dev data"
    )
    assert not plots.plot_scores(tmp_path / "scores.png", {"splits": {"test": {"metrics": {"pearson": 1.0}}}})
    assert not (tmp_path / "scores.png").exists(), "that of another run"


def chinese(results):
    details = {**DETAILS, "labels": ["好评", "差评"]}
    splits = {"validation": {**results["splits"]["validation"], "details": details}}
    return {**results, "splits": splits, "data": {"title": "评论 $x$"}, "baselines": {"词袋 $": {"accuracy": 0.5}}}


def test_names_that_no_font_has_become_numbers_without_a_warning(tmp_path, monkeypatch, recwarn):
    """Both pictures are really drawn: the warning comes from there, with the path of a source file."""
    own = [font for font in font_manager.fontManager.ttflist if font.name.startswith(("DejaVu", "Last Resort"))]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own)
    figures = []
    savefig = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, path, **options: (figures.append(self), savefig(self, path, **options))
    )
    plots.plot_training(tmp_path / "training.png", ROWS, chinese(RESULTS))
    plots.plot_scores(tmp_path / "scores.png", chinese(RESULTS))
    assert not [str(warning.message) for warning in recwarn if "Glyph" in str(warning.message)]
    (matrix,) = figures[1].axes
    assert [text.get_text() for text in matrix.get_xticklabels()] == ["1", "2"]
    assert "numbers" in matrix.get_xlabel()
    assert r"fine-tuned on ?? \$x\$" in figures[0].get_suptitle()


def test_another_installed_font_is_used_for_what_the_standard_font_lacks():
    standard = plot_fonts._characters_of(font_manager.findfont("DejaVu Sans"))
    other = plot_fonts._characters_of(font_manager.findfont("STIXGeneral"))
    character = min(other - standard)
    fonts = plot_fonts.fonts_for([f"a{character}"])
    assert len(fonts.families) == 2 and fonts.families[0] == "DejaVu Sans" and not fonts.missing
