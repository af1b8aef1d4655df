"""Which models a server has: those of a file in TF Serving's format, or those of a directory."""

import tensorflow as tf
from google.protobuf import text_format
from tensorflow_serving.config.model_server_config_pb2 import ModelConfig, ModelServerConfig

from mrnn_tf import schema, versions
from mrnn_tf.errors import UserError

Configs = dict[str, ModelConfig]  # by name


def read(path: str) -> Configs:
    """The models of a configuration file; a relative base path begins at the file's folder."""
    try:
        with tf.io.gfile.GFile(path) as file:
            text = file.read()
        listed = text_format.Parse(text, ModelServerConfig()).model_config_list.config
    except tf.errors.NotFoundError:
        raise UserError(f"`model_config_file`: there is no file {path}.") from None
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise UserError(f"`model_config_file`: {path} is no ModelServerConfig: {error}.") from None
    configs = {}
    for config in listed:
        if not config.name or not config.base_path or config.model_platform != "tensorflow":
            wanted = 'name, base_path and model_platform: "tensorflow"'
            got = text_format.MessageToString(config, as_one_line=True)
            raise UserError(f"`model_config_file`: {path}: a model needs {wanted}, got {got}.")
        if config.name in configs:
            raise UserError(f"`model_config_file`: {path} names the model {config.name} twice.")
        if "://" not in config.base_path:
            config.base_path = tf.io.gfile.join(path.rpartition("/")[0], config.base_path)
        configs[config.name] = config
    if not configs:
        raise UserError(f"`model_config_file`: {path} has no model in its model_config_list.")
    return configs


def in_directory(base_path: str) -> Configs:
    """Every model of a directory, which is a folder with whole versions, to serve the newest."""
    found = tf.io.gfile.glob(tf.io.gfile.join(base_path, "*", "*", schema.SAVED_MODEL_FILE))
    names = {f.split("/")[-3] for f in found if versions.NUMBER.fullmatch(f.split("/")[-2])}
    return {
        name: ModelConfig(name=name, base_path=tf.io.gfile.join(base_path, name))
        for name in sorted(names)
    }
