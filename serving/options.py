"""What serving.local can be asked, as options whose fields are flags; without TensorFlow."""

import dataclasses

from mrnn_tf.config import Config, field
from mrnn_tf.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits(Config):
    """The limits of a server."""

    max_rows: int = field(256, "rows of the largest request", at_least=1)
    max_text_bytes: int = field(1 << 16, "bytes of the longest text of a request", at_least=1)
    max_message_bytes: int = field(64 << 20, "bytes of the largest request", at_least=1)
    max_inflight_bytes: int = field(512 << 20, "bytes of all requests at a time", at_least=1)
    max_connections: int = field(384, "open connections of each port", at_least=1)
    max_queued: int = field(
        256, "waiting requests of a signature; more are refused as UNAVAILABLE", at_least=1
    )
    read_timeout_seconds: float = field(
        20.0, "seconds for a request to arrive, and for its answer to be taken", at_least=0.001
    )
    request_timeout_seconds: float = field(60.0, "seconds for one request", at_least=0.001)

    def __post_init__(self):
        super().__post_init__()
        if self.max_inflight_bytes < self.max_message_bytes:
            got = f"{self.max_inflight_bytes} and {self.max_message_bytes}"
            raise UserError(f"`max_inflight_bytes` must be `max_message_bytes` or more; got {got}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalOptions(Limits):
    """What is served, where, and within which limits."""

    model_base_path: str = field("", "directory of the models, to serve the newest of each")
    model_config_file: str = field("", "or a file in TF Serving's format: models, versions, labels")
    host: str = field("127.0.0.1", "address to listen on; 0.0.0.0 admits other machines")
    port: int = field(8500, "port for gRPC; 0 takes a free one", at_least=0, below=65536)
    rest_api_port: int = field(8501, "port for REST; 0 takes a free one", at_least=0, below=65536)
    poll_seconds: float = field(1.0, "seconds between looks for changes", at_least=0.01)
    batching: bool = field(True, "run concurrent requests as one batch")
    max_batch_size: int = field(64, "rows of the largest merged batch", at_least=1)
    batch_timeout_ms: float = field(2.0, "how long a request may wait for others", at_least=0)
    intra_op_threads: int | None = field(None, "threads of an op; default: all cores", at_least=1)
    log_requests: bool = field(False, "log a line for each request to predict")
    grace_seconds: float = field(10.0, "seconds for running requests after a stop", at_least=0)
