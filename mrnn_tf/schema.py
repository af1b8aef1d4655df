"""Every name that crosses a boundary: files, record keys, reserved words, splits.

Programs, records, SavedModels and clients agree on these names and on nothing else. The module
imports nothing, so that a client may use it without TensorFlow.
"""

# Files of a dataset directory.
DATASET_FILE = "dataset.json"  # the marker: written last, so its presence means "whole"
VOCABULARY_FILE = "vocabulary.txt"
PROBLEMS_FILE = "problems.jsonl"  # every bad file and caption by name; none where all is well
SHARD_PATTERN = "{split}-{index:05d}-of-{count:05d}.tfrecord"

# Files of a run directory.
CONFIG_FILE = "config.json"
CHECKPOINT_DIR = "checkpoints"
LOG_DIR = "logs"
MODEL_DIR = "model"
REPORT_DIR = "report"

# Files of a report: the one that is written last.
SCORES_FILE = "scores.json"
DETAILS_FILE = "details.json"

# Files of a version of a servable: the one that is written last, the checksums of all, and the
# warm-up requests.
SAVED_MODEL_FILE = "saved_model.pb"
CHECKSUMS_FILE = "assets.extra/checksums.json"
WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"

# Keys of a `tf.train.Example`, one per image.
IMAGE_ID = "image/id"  # bytes
IMAGE_FEATURES = "image/features"  # float[D]
IMAGE_ENCODED = "image/encoded"  # bytes, JPEG or PNG
IMAGE_PICTURE = "image/picture"  # bytes, a small JPEG for people
CAPTION_TEXT = "caption/text"  # bytes list, raw text

# Splits of a dataset.
TRAIN, VAL, TEST = "train", "val", "test"
SPLITS = (TRAIN, VAL, TEST)

# Reserved words; their ids are their places in this tuple.
PAD, START, END, UNKNOWN = "<pad>", "<s>", "</s>", "<unk>"
RESERVED_WORDS = (PAD, START, END, UNKNOWN)
PAD_ID, START_ID, END_ID, UNKNOWN_ID = range(4)

# Names of model inputs.
FEATURES = "features"  # float [B, D], the raw output of the encoder
WORD_IDS = "word_ids"  # int32 [B, T], begins with <s>
TARGET_IDS = "target_ids"  # int32 [B, T], ends with </s>, padded with <pad>
IMAGES = "images"  # string [B], encoded
PICTURES = "pictures"  # string [B], small JPEGs for people, "" where there is none
PIXELS = "pixels"  # float [B, crops, H, W, 3], as the encoder takes them

# Servables, their signatures and the tensors of these.
MODEL, INDEX = "mrnn", "mrnn_index"
CAPTION, BEAM_DECODE, NEXT_WORD = "caption", "beam_decode", "next_word"
SENTENCE_LOG_PROB, ENCODE_IMAGE = "sentence_log_prob", "encode_image"
SENTENCE_VECTOR, VECTORS = "sentence_vector", "vectors"
SCORE_IMAGES, SCORE_PROJECTIONS = "score_images", "score_projections"
UNBATCHED = (SCORE_IMAGES,)  # every row by every sentence: requests must not be joined
SEARCH_IMAGES, SEARCH_SENTENCES = "search_images", "search_sentences"
SEARCH_IMAGES_EXACT, SEARCH_PREFIX = "search_images_exact", "search_prefix"
SIMILAR_IMAGES, CAPTION_RERANKED = "similar_images", "caption_reranked"
SERVING_DEFAULT = "serving_default"
CAPTION_EXAMPLES, EXAMPLES = "caption_examples", "examples"  # string [B], each an Example as above
IMAGE_BYTES, PREFIX, SENTENCES = "image_bytes", "prefix", "sentences"
CAPTIONS, LOG_PROBS, WORDS = "captions", "log_probs", "words"
WORD_LOG_PROBS, WORD_EVIDENCE = "word_log_probs", "word_evidence"
LOG_PROB, PERPLEXITY = "log_prob", "perplexity"
NUM_WORDS, NUM_UNKNOWN = "num_words", "num_unknown"
REFINED, IDS, SCORES, CONSENSUS = "refined", "ids", "scores", "consensus"
PROJECTIONS = "projections"  # float [B, M], V_I I
WORD_SCORES = "word_scores"
MODEL_INFO, KEYS, VALUES = "model_info", "keys", "values"

# Keys of `model_info`.
MODEL_FINGERPRINT, ENCODER_IDENTITY, VOCABULARY_HASH = "model", "encoder", "vocabulary"
STEP, FEATURE_SIZE, SETTINGS = "step", "feature_size", "settings"

# What stands for "no such sentence"; finite, since JSON has no infinity.
MISSING_LOG_PROB = -3.4e38
