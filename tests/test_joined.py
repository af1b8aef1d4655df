"""Features of several encoders joined, from the files to a served model and its index."""

import json

import numpy as np
import programs
import pytest
import tensorflow as tf
import tiny

from mrnn_tf import Captioner, schema
from mrnn_tf.data import pipeline, records
from mrnn_tf.run import Run

SIZES = ["--embedding_1=8", "--embedding_2=16", "--recurrent=16", "--multimodal=24"]
STILL = ["--dropout_embedding=0", "--dropout_recurrent=0", "--dropout_multimodal=0"]
PARTS = [3, 4]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Colours in large features, things in small ones: the records of both, and a trained run."""
    folder = tmp_path_factory.mktemp("joined")
    rng, names, lines = np.random.default_rng(0), [], []
    colours, things = rng.normal(0, 0.05, (60, 3)), rng.normal(0, 0.05, (60, 4))
    for i in range(60):
        colour, thing = i % 3, i % 4
        colours[i, colour] += 1
        things[i, thing] += 1
        names.append(f"{i}.jpg")
        split = schema.TRAIN if i < 48 else schema.VAL
        captions = tiny.captions_of(colour, thing)
        lines.append(json.dumps({"image": names[-1], "captions": captions, "split": split}))
    (folder / "captions.jsonl").write_text("\n".join(lines))
    (folder / "names.txt").write_text("\n".join(names))
    np.save(folder / "colours.npy", (1000 * colours).astype(np.float16))
    np.save(folder / "things.npy", things)
    data, job, model = folder / "data", folder / "job", folder / "mrnn"
    prepare = ["--dataset=jsonl", "--source", folder, "--output", data, "--min_count=1"]
    prepare += ["--features", f"{folder}/colours.npy,{folder}/things.npy"]
    prepare += ["--names", folder / "names.txt"]
    task = ["--data", data, "--job_dir", job, "--preset=demo", *SIZES, *STILL, "--epochs=20"]
    task += ["--batch_size=12", "--learning_rate=0.01", "--evaluate_epochs=5"]
    evaluate = ["--data", data, "--job_dir", job, "--tasks=captions,rerank,retrieval"]
    evaluate += ["--n_best=3", "--widths=", "--sample=10"]
    index = ["--model", model / "1", "--data", data, "--output", folder / "mrnn_index"]
    index += ["--sample=10", "--k=5", "--beam=3", "--neighbours=4"]
    for module, arguments in {
        "trainer.prepare": prepare,
        "trainer.task": task,
        "trainer.evaluate": evaluate,
        "export.task": ["--job_dir", job, "--output", model, "--beam=3", "--max_words=10"],
        "export.index": index,
    }.items():
        done = programs.run(folder / "logs", module, *arguments)
        assert done.code == 0, done.err
    return folder


@pytest.fixture
def features(folder):
    source = pipeline.Source(str(folder / "data"), schema.VAL, None)
    [batch] = pipeline.image_batches(source, 64)
    return batch[schema.FEATURES].numpy()


def test_the_parts_are_in_the_dataset_and_in_the_run(folder):
    info = records.DatasetInfo.load(str(folder / "data"))
    assert info.encoder == {
        "identity": "features:colours+things:3+4", "feature_size": 7, "parts": PARTS,
    }  # fmt: skip
    config = json.loads((folder / "job" / "config.json").read_text())
    assert config["encoder"]["parts"] == PARTS and config["feature_size"] == 7
    for run in (Run.load(str(folder / "job")), Run.from_saved_model(str(folder / "mrnn" / "1"))):
        assert run.config.feature_parts == (3, 4)


def test_the_small_part_is_seen_beside_the_large_one(folder):
    scores = json.loads((folder / "job" / "report" / "scores.json").read_text())
    # One length of both would leave of the things a thousandth.
    assert scores["captions"]["beam 5"]["bleu_4"] > 0.95
    assert scores["retrieval"]["text to image"]["r_1"] > 90


@pytest.mark.parametrize("part", [slice(0, 3), slice(3, 7)])
def test_an_export_scales_each_part_by_itself(folder, features, part):
    captioner = Captioner.load(str(folder / "mrnn" / "1"))
    scaled = features.copy()
    scaled[:, part] *= 50.0
    for own, other in zip(captioner.caption(features), captioner.caption(scaled), strict=True):
        assert [c.text for c in own] == [c.text for c in other]
        np.testing.assert_allclose(
            [c.log_prob for c in own], [c.log_prob for c in other], atol=1e-4
        )


def test_the_index_finds_by_both_parts(folder, features):
    served = tf.saved_model.load(str(folder / "mrnn_index" / "1"))
    found = served.signatures[schema.SIMILAR_IMAGES](features=tf.constant(features))
    for i, ids in enumerate(found["ids"].numpy()):
        near = [int(name.removesuffix(b".jpg")) for name in ids]
        assert {(n % 3, n % 4) for n in near} == {((48 + i) % 3, (48 + i) % 4)}
