import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny

from mrnn_tf import schema
from mrnn_tf.config import ModelConfig
from mrnn_tf.errors import UserError
from mrnn_tf.model import MRNN, ensemble
from mrnn_tf.run import Run
from trainer.ensemble import merge_runs
from trainer.evaluate import evaluate
from trainer.options import EnsembleOptions, EvaluateOptions, TrainOptions
from trainer.train import train

SIZES = {"embedding_1": 4, "embedding_2": 6, "recurrent": 6, "multimodal": 7}
MERGED = (
    "mrnn", "rnn_base", "no_emb_input", "one_layer_emb", "emb_one_input", "vis_in_rnn",
    "vis_in_rnn_both", "vis_in_rnn_both_shared",
)  # fmt: skip


def build(seed, variant="mrnn", cell="mrnn"):
    config = ModelConfig(variant, cell, **SIZES)
    model = MRNN(config, vocabulary_size=11, feature_size=8, feature_parts=[3, 5])
    rng = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        variable.assign(rng.normal(0, 0.5, variable.shape))
    return model


@pytest.mark.parametrize(
    ("variant", "cell"), [*((variant, "mrnn") for variant in MERGED), ("mrnn", "elman")]
)
def test_merged_logits_are_the_mean(variant, cell):
    models = [build(seed, variant, cell) for seed in range(3)]
    rng = np.random.default_rng(9)
    batch = {
        schema.FEATURES: rng.gamma(1, 5, (2, 8)).astype("float32"),
        schema.WORD_IDS: rng.integers(0, 11, (2, 5)).astype("int32"),
    }
    expected = np.mean([model(batch) for model in models], axis=0)
    merged = ensemble.merge(models)
    np.testing.assert_allclose(merged(batch), expected, rtol=1e-4, atol=1e-5)
    assert merged.config.multimodal == 21 and merged.feature_parts == [3, 5]


@pytest.mark.parametrize(("variant", "cell"), [("mrnn_shared", "mrnn"), ("mrnn", "gru")])
def test_what_has_no_merged_form_is_refused(variant, cell):
    with pytest.raises(UserError, match=f"`{variant}` with the cell `{cell}` cannot be merged"):
        ensemble.merge([build(0, variant, cell), build(1, variant, cell)])


@pytest.fixture
def other_job(tiny_job, tiny_data, tmp_path):
    """The run of another seed."""
    config = Run.load(tiny_job).config
    options = TrainOptions(
        data=tiny_data,
        job_dir=str(tmp_path / "other"),
        model=config.model,
        train=dataclasses.replace(config.train, seed=1, epochs=8.0),
    )
    train(options)
    return options.job_dir


def test_runs_become_a_run_that_is_evaluated_as_any(tiny_job, other_job, tiny_data, tmp_path):
    job_dir = str(tmp_path / "both")
    merged = merge_runs(EnsembleOptions(runs=(tiny_job, other_job), job_dir=job_dir))
    loaded = Run.load(job_dir)
    assert loaded.fingerprint == merged.fingerprint
    assert loaded.network.mean_projection().shape == [48]
    options = EvaluateOptions(job_dir=job_dir, data=tiny_data, n_best=3, widths=(), sample=10,
                              tasks=("captions", "rerank", "retrieval"), meteor=False)  # fmt: skip
    scores = evaluate(options)
    assert scores["captions"]["beam 5"]["bleu_3"] > 0.9  # a sentence may have three words
    assert json.loads(Path(job_dir, "report", "scores.json").read_text())["step"] == loaded.step
    with pytest.raises(UserError, match=r"`job_dir` .* holds files"):
        merge_runs(EnsembleOptions(runs=(tiny_job, other_job), job_dir=job_dir))


def test_runs_that_differ_are_refused_by_name(tiny_job, tmp_path):
    other = str(shutil.copytree(tiny_job, tmp_path / "other"))
    tiny.edit(f"{other}/config.json", lambda config: config.update(dataset="another"))
    with pytest.raises(UserError, match=r"`runs`: .*other cannot join .*: dataset is 'another'"):
        merge_runs(EnsembleOptions(runs=(tiny_job, other), job_dir=str(tmp_path / "both")))
    with pytest.raises(UserError, match="`runs` must be two run directories at least; got 1"):
        merge_runs(EnsembleOptions(runs=(tiny_job,), job_dir=str(tmp_path / "both")))
    assert not (tmp_path / "both").exists()
