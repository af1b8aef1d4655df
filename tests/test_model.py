import keras
import numpy as np
import pytest
import tensorflow as tf

from mrnn_tf import schema
from mrnn_tf.config import CELLS, ModelConfig
from mrnn_tf.model import MRNN, WIRINGS, loss

V, D, B, T = 11, 8, 3, 5
SIZES = {"embedding_1": 4, "embedding_2": 6, "recurrent": 6, "multimodal": 7}
EVERY_VARIANT_AND_CELL = [(variant, "mrnn") for variant in WIRINGS] + [
    (variant, cell) for variant in ("mrnn", "vis_in_rnn_both") for cell in CELLS[1:]
]


def build(variant="mrnn", cell="mrnn", **fields):
    """A small model whose weights, biases too, are far from their beginning."""
    model = MRNN(ModelConfig(variant, cell, **{**SIZES, **fields}), V, D)
    rng = np.random.default_rng(0)
    for each in model.trainable_variables:
        each.assign(rng.normal(0, 0.5, each.shape))
    return model


@pytest.fixture
def batch():
    rng = np.random.default_rng(1)
    return {
        schema.FEATURES: rng.gamma(1, 5, (B, D)).astype("float32"),
        schema.WORD_IDS: rng.integers(0, V, (B, T)).astype("int32"),
    }


@pytest.fixture
def policy(request):
    keras.config.set_dtype_policy(request.param)
    yield request.param
    keras.config.set_dtype_policy("float32")


def test_the_model_is_equations_2_and_3(batch):
    model = build()
    e1, e2, u_r, v_r, v_i, v_w, softmax, bias = (
        model.get_layer(name).get_weights()[i]
        for name, i in [
            ("embedding_1", 0),
            ("embedding_2", 0),
            ("recurrence", 0),
            ("recurrent_to_multimodal", 0),
            ("image_to_multimodal", 0),
            ("words_to_multimodal", 0),
            ("softmax", 0),
            ("softmax", 1),
        ]
    )
    features = batch[schema.FEATURES]
    image = 5.0 * features / np.linalg.norm(features, axis=1, keepdims=True)
    r, expected = np.zeros((B, 6)), []
    for t in range(T):
        w = e1[batch[schema.WORD_IDS][:, t]] @ e2
        r = np.maximum(r @ u_r + w, 0)
        m = 1.7159 * np.tanh(2 / 3 * (w @ v_w + r @ v_r + image @ v_i))
        expected.append(m @ softmax + bias)
    np.testing.assert_allclose(model(batch), np.stack(expected, 1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("variant", "cell"), EVERY_VARIANT_AND_CELL)
def test_steps_equal_the_whole_sequence(variant, cell, batch):
    model = build(variant, cell)

    @tf.function(
        input_signature=[tf.TensorSpec([None, D]), tf.TensorSpec([None, None], tf.int32)],
        autograph=False,
    )
    def by_steps(features, word_ids):
        image = model.project_image(features)

        def body(t, state, columns):
            logits, state = model.step(word_ids[:, t], state, image)
            return t + 1, state, columns.write(t, logits)

        length = tf.shape(word_ids)[1]
        columns = tf.TensorArray(tf.float32, length)
        loop = (0, model.initial_state(image), columns)
        *_, columns = tf.while_loop(lambda t, *_: t < length, body, loop)
        return tf.transpose(columns.stack(), (1, 0, 2))

    np.testing.assert_allclose(by_steps(*batch.values()), model(batch), atol=1e-5)


@pytest.mark.parametrize("variant", [v for v, w in WIRINGS.items() if not w.recurrence_sees_image])
def test_words_and_images_can_be_computed_apart(variant, batch):
    model = build(variant)
    h = model.word_part(batch[schema.WORD_IDS])
    image = model.project_image(batch[schema.FEATURES])
    np.testing.assert_allclose(model.logits_from(h, image), model(batch), atol=1e-5)
    every_pair = model.logits_from(h[:, None], image)
    for i in range(B):
        for j in range(B):
            pair = {
                schema.FEATURES: batch[schema.FEATURES][j : j + 1],
                schema.WORD_IDS: batch[schema.WORD_IDS][i : i + 1],
            }
            np.testing.assert_allclose(every_pair[i, j], model(pair)[0], atol=1e-5)


@pytest.mark.parametrize("variant", [v for v, w in WIRINGS.items() if w.recurrence_sees_image])
def test_words_that_need_the_image_are_refused_alone(variant, batch):
    with pytest.raises(ValueError, match=f"`{variant}` cannot read words without an image"):
        build(variant).word_part(batch[schema.WORD_IDS])


# Keras 3.15 converts its variables in a way that NumPy 2 deprecates.
@pytest.mark.parametrize("variant", WIRINGS)
def test_save_and_load_give_the_same_model(variant, batch, tmp_path):
    model = build(variant)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is MRNN
    assert loaded.get_config() == model.get_config()
    np.testing.assert_array_equal(loaded(batch), model(batch))


def test_a_checkpoint_holds_every_variable(tmp_path):
    model = build("nic")
    model.dropout_recurrent.calls.assign(5)
    other = MRNN(model.config, V, D, seed=1)
    path = tf.train.Checkpoint(model=model).write(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(model=other).read(path).assert_consumed()
    for mine, theirs in zip(model.variables, other.variables, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


def test_the_seed_decides_the_weights_and_the_dropout(batch):
    def outputs(seed):
        model = MRNN(ModelConfig(**SIZES), V, D, seed=seed)
        return model(batch).numpy(), model(batch, training=True).numpy()

    for first, same, other in zip(outputs(1), outputs(1), outputs(2), strict=True):
        np.testing.assert_array_equal(first, same)
        assert (first != other).any()


@pytest.mark.parametrize("place", ["features", "embedding", "recurrent", "multimodal"])
def test_every_dropout_acts_in_training_alone(place, batch):
    rates = dict.fromkeys(("dropout_embedding", "dropout_recurrent", "dropout_multimodal"), 0.0)
    model = build(**{**rates, f"dropout_{place}": 0.5})
    assert (model(batch, training=True) != model(batch)).numpy().any()
    without = build(**rates)
    np.testing.assert_array_equal(without(batch, training=True), model(batch))


def test_dropped_features_are_projected_once_behind_the_norm(batch):
    features = batch[schema.FEATURES]
    model, twin = (build(dropout_features=0.5) for _ in range(2))
    dropped = twin.dropout_features(twin.feature_norm(features), training=True)
    expected = twin.image_to_multimodal(dropped)
    image = model.project_image(features, training=True)
    np.testing.assert_allclose(image["multimodal"], expected, rtol=1e-5)
    still = model.project_image(features)["multimodal"]
    assert (still != expected).numpy().any()


def test_only_the_model_without_image_ignores_it(batch):
    other = {**batch, schema.FEATURES: batch[schema.FEATURES][::-1]}
    for variant in WIRINGS:
        model = build(variant)
        changes = (model(batch) != model(other)).numpy().any()
        assert changes == (variant != "rnn_base")


def test_later_words_do_not_reach_earlier_ones(batch):
    model = build()
    padded = np.pad(batch[schema.WORD_IDS], ((0, 0), (0, 3)))
    longer = model({**batch, schema.WORD_IDS: padded})
    np.testing.assert_allclose(longer[:, :T], model(batch), atol=1e-6)


def test_a_zero_feature_vector_is_no_nan(batch):
    zeros = {**batch, schema.FEATURES: np.zeros((B, D), "float32")}
    assert np.isfinite(build()(zeros)).all()


def test_features_are_normalised_inside_the_model(batch):
    scaled = {**batch, schema.FEATURES: 100 * batch[schema.FEATURES]}
    np.testing.assert_allclose(build()(scaled), build()(batch), atol=1e-4)
    raw = build(feature_norm=0.0)
    assert not np.allclose(raw(scaled), raw(batch), atol=1e-2)


def test_refined_features_are_g2_of_the_projection(batch):
    model = build()
    projected = model.project_image(batch[schema.FEATURES])["multimodal"]
    refined = model.refined(batch[schema.FEATURES])
    np.testing.assert_allclose(refined, 1.7159 * np.tanh(2 / 3 * projected), rtol=1e-5)
    with pytest.raises(ValueError, match="`vis_in_rnn` has no refined image features"):
        build("vis_in_rnn").refined(batch[schema.FEATURES])


def test_word_vectors_are_embedding_layer_2():
    model = build()
    (first,), (second,) = model.embedding_1.get_weights(), model.embedding_2.get_weights()
    np.testing.assert_allclose(model.word_vectors(), first @ second, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"], indirect=True)
@pytest.mark.parametrize(
    ("variant", "cell"),
    [("mrnn", cell) for cell in CELLS]
    + [("rnn_base", "mrnn"), ("mrnn_shared", "mrnn"), ("nic", "")],
)
def test_mixed_precision_gives_float32_logits(variant, cell, policy, batch):
    fields = {"cell": cell} if cell else {}
    model = build(variant, **fields)
    logits = model(batch, training=True)
    assert logits.dtype == tf.float32
    keras.config.set_dtype_policy("float32")
    expected = build(variant, **fields)(batch)
    np.testing.assert_allclose(model(batch), expected, atol=0.1)
    image = model.project_image(batch[schema.FEATURES])
    logits, _ = model.step(batch[schema.WORD_IDS][:, 0], model.initial_state(image), image)
    np.testing.assert_allclose(logits, expected[:, 0], atol=0.1)


@pytest.mark.parametrize("policy", ["float64"], indirect=True)
@pytest.mark.parametrize("variant", ["mrnn", "mrnn_shared", "vis_in_rnn_both_shared"])
def test_gradients_equal_finite_differences(variant, policy, batch):
    model = build(variant)
    targets = np.random.default_rng(2).integers(0, V, (B, T))

    def bits():
        return loss.word_costs(model(batch), targets)[0]

    with tf.GradientTape() as tape:
        total = bits()
    variables = model.trainable_variables
    for variable, gradient in zip(variables, tape.gradient(total, variables), strict=True):
        start = variable.numpy()
        direction = np.random.default_rng(3).normal(size=start.shape)
        ends = []
        for sign in (1, -1):
            variable.assign(start + sign * 1e-6 * direction)
            ends.append(bits())
        variable.assign(start)
        difference = (ends[0] - ends[1]) / 2e-6
        slope = np.sum(tf.convert_to_tensor(gradient) * direction)
        np.testing.assert_allclose(slope, difference, rtol=1e-6, err_msg=variable.path)


def test_overfits_twenty_captions():
    rng = np.random.default_rng(0)
    captions, length, words = 20, 8, 30
    features = rng.normal(size=(captions, 16)).astype("float32")
    targets = np.zeros((captions, length), "int32")
    for row in targets:
        end = rng.integers(3, length)
        row[:end] = rng.integers(4, words, end)
        row[end] = schema.END_ID
    word_ids = np.pad(targets, ((0, 0), (1, 0)), constant_values=schema.START_ID)[:, :-1]
    model = MRNN(
        ModelConfig(
            embedding_1=16,
            embedding_2=32,
            recurrent=32,
            multimodal=32,
            dropout_embedding=0.0,
            dropout_recurrent=0.0,
            dropout_multimodal=0.0,
        ),
        words,
        16,
    )
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    inputs = {schema.FEATURES: features, schema.WORD_IDS: word_ids}

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            bits, count = loss.word_costs(model(inputs, training=True), targets)
            cost = bits / count
        gradients = tape.gradient(cost, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for _ in range(120):
        step()
    assert loss.perplexity(*loss.word_costs(model(inputs), targets)) < 1.1


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"`recurrent` must equal `embedding_2`.*got 5 and 6"):
        build(recurrent=5)
