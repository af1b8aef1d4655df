"""Tested settings, each with its cost and its scores.

    python -m trainer.task --data DATA --job_dir DIR --preset NAME

A preset is a function without arguments that returns a `ModelConfig` and a `TrainConfig`.
"""

from mrnn_tf.config import ModelConfig, TrainConfig


def paper() -> tuple[ModelConfig, TrainConfig]:
    """The network and the sizes of the paper.

    Validation on Flickr8k with ResNet50 features, mean of three seeds: perplexity 16.95; beam 5:
    BLEU-4 .206, CIDEr .503; with DINOv2 features 15.26, .234, .588; with ResNet50, DINOv2 and
    TinyViT joined 14.89, .257, .632. Trains 14 epochs, 15 minutes on one core.
    """
    return ModelConfig(), TrainConfig(epochs=14.0)


def shared() -> tuple[ModelConfig, TrainConfig]:
    """The paper's m-RNN-shared: the softmax uses the transposed word embeddings.

    Validation on Flickr8k with ResNet50 features, seed 0: perplexity 17.83; beam 5: BLEU-4 .205,
    CIDEr .495. Trains 14 epochs, ten minutes on one core.
    """
    return ModelConfig(variant="mrnn_shared"), TrainConfig(epochs=14.0, learning_rate=3e-3)


def nic() -> tuple[ModelConfig, TrainConfig]:
    """The baseline NIC (Show and Tell): an LSTM of 512 units, whose first input is the image.

    After four epochs, seed 0, Flickr8k's validation perplexity with ResNet50 features is 19.28,
    where the m-RNN has 18.01 with its own best learning rate.
    """
    model = {"variant": "nic", "embedding_2": 512, "recurrent": 512, "feature_norm": 30.0}
    dropout = {"dropout_embedding": 0.3, "dropout_recurrent": 0.3}
    return ModelConfig(**model, **dropout), TrainConfig(epochs=14.0, learning_rate=6e-3)


def best() -> tuple[ModelConfig, TrainConfig]:
    """A second stage after `paper`: trains the run `initial_run` on CIDEr-D.

    Dropout of the features keeps the network from recognising the training images. Validation on
    Flickr8k with ResNet50 features, mean of three seeds after `paper`: perplexity 17.72; beam 5:
    BLEU-4 .215, CIDEr .545; with DINOv2 features 15.63, .247, .653, with joined ones 15.28, .261,
    .689. Trains 2 epochs, five minutes on one core.
    """
    cider = {"objective": "cider", "candidates": 5, "batch_size": 320, "evaluate_epochs": 0.5}
    train = TrainConfig(epochs=2.0, learning_rate=1e-4, warmup_steps=20, **cider)
    return ModelConfig(dropout_features=0.3), train


def demo() -> tuple[ModelConfig, TrainConfig]:
    """The paper's network at half its sizes, for the embedded dataset: `make demo`.

    Validation perplexity 2.47 after one minute of training on two cores.
    """
    small = {"embedding_1": 64, "embedding_2": 128, "recurrent": 128, "multimodal": 256}
    dropout = {"dropout_embedding": 0.2, "dropout_recurrent": 0.2, "dropout_multimodal": 0.3}
    train = TrainConfig(epochs=15.0, batch_size=64, learning_rate=2e-3)
    return ModelConfig(**small, **dropout), train


PRESETS = {preset.__name__: preset for preset in (paper, shared, nic, best, demo)}
