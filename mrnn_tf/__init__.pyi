"""The names of `__init__`, for type checkers."""

from mrnn_tf.captioner import Caption as Caption
from mrnn_tf.captioner import Captioner as Captioner
from mrnn_tf.captioner import Score as Score
from mrnn_tf.captioner import Unreadable as Unreadable
from mrnn_tf.captioner import Word as Word
from mrnn_tf.config import BeamSearch as BeamSearch
from mrnn_tf.config import ModelConfig as ModelConfig
from mrnn_tf.config import TrainConfig as TrainConfig
from mrnn_tf.errors import UserError as UserError
from mrnn_tf.model.mrnn import MRNN as MRNN
from mrnn_tf.photo_index import Match as Match
from mrnn_tf.photo_index import PhotoIndex as PhotoIndex
from mrnn_tf.photo_index import RerankedCaption as RerankedCaption
from mrnn_tf.photo_index import SentenceMatch as SentenceMatch
from mrnn_tf.text import Vocabulary as Vocabulary

__version__: str
