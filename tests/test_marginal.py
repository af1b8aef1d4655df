import numpy as np
import pytest
import searching

from mrnn_tf.retrieval import marginal


@pytest.fixture(scope="module")
def searched():
    scorer, read, images, expected = searching.searched(sentence_count=12, image_count=60)
    return scorer, read, scorer.expand(read, images.mean(axis=0)), images, expected


def test_the_marginal_is_the_mean_probability_over_the_sample(searched):
    scorer, _, expansion, images, expected = searched
    found = marginal.log_marginals(scorer, expansion, images)
    np.testing.assert_allclose(found, np.log(np.exp(expected).mean(axis=1)), atol=1e-4)
    assert found.dtype == np.float64
    with pytest.raises(ValueError, match="`sample` must hold an image"):
        marginal.log_marginals(scorer, expansion, images[:0])
    bad = images.copy()
    bad[5, 1] = np.nan
    with pytest.raises(ValueError, match=r"`sample` must hold .* no NaN"):
        marginal.log_marginals(scorer, expansion, bad)


def test_the_likeliest_images_make_most_of_it(searched, monkeypatch):
    scorer, read, expansion, images, expected = searched
    scored = []
    pairs = scorer.pairs
    monkeypatch.setattr(scorer, "pairs", lambda *given: scored.append(given[1]) or pairs(*given))
    found = marginal.log_marginals(scorer, expansion, images, likeliest=30)
    assert [len(rows) for rows in scored] == [30 * len(read.words)]
    whole = np.log(np.exp(expected).mean(axis=1))
    assert (found <= whole + 1e-4).all()  # what is left out is taken for nothing
    assert np.median(whole - found) < 0.2


def test_the_mean_survives_what_float32_cannot_hold():
    assert marginal.log_mean_exp([[-1000.0, -1000.0]]) == pytest.approx(-1000.0)
    assert marginal.log_mean_exp([[0.0, -1e9]]) == pytest.approx(np.log(0.5))


def test_samples_repeat_by_their_seed_and_hold_no_image_twice():
    chosen = marginal.sample_rows(100, 20, seed=3)
    assert chosen.tolist() == marginal.sample_rows(100, 20, seed=3).tolist()
    assert chosen.tolist() != marginal.sample_rows(100, 20, seed=4).tolist()
    assert len(set(chosen.tolist())) == 20 and (np.diff(chosen) > 0).all()
    assert marginal.sample_rows(5, 20, seed=0).tolist() == [0, 1, 2, 3, 4]
