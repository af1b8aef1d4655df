from mrnn_tf.model.mrnn import MRNN as MRNN
from mrnn_tf.model.variants import WIRINGS as WIRINGS
