"""What every transport answers: predictions, and the signatures of a version."""

import asyncio
import dataclasses
from collections.abc import Callable, Sequence

import grpc
from tensorflow_serving.apis.get_model_metadata_pb2 import SignatureDefMap
from tensorflow_serving.apis.model_pb2 import ModelSpec

from serving.batching import Batcher
from serving.model_directory import ModelDirectory
from serving.refusal import Refused
from serving.served_version import Arrays, ServedSignature


@dataclasses.dataclass
class Predictor:
    """Answers requests within a time."""

    models: ModelDirectory
    batcher: Batcher
    timeout_seconds: float

    async def predict(
        self,
        spec: ModelSpec,
        read: Callable[[ServedSignature], Arrays],
        output_filter: Sequence[str] = (),
    ) -> tuple[ModelSpec, Arrays]:
        """Runs a signature on the inputs that `read` makes of a request.

        Returns the model, version and signature that have answered, and the outputs by name: those
        that `output_filter` names, or all.
        """
        version = self.models.find(spec)
        with version.in_use():
            signature = version.signature(spec.signature_name)
            wanted = signature.choose(output_filter)
            inputs = read(signature)
            try:
                async with asyncio.timeout(self.timeout_seconds):
                    outputs = await self.batcher.run(signature, inputs)
            except TimeoutError:
                raise Refused(
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                    f"no answer within {self.timeout_seconds:g} seconds.",
                ) from None
        answered = version.spec(signature.name)
        return answered, {name: outputs[name] for name in wanted}

    def metadata(self, spec: ModelSpec) -> tuple[ModelSpec, SignatureDefMap]:
        """A model and its version, and the definitions of its signatures."""
        version = self.models.find(spec)
        return version.spec(), SignatureDefMap(signature_def=version.definitions)
