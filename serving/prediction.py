"""A request from its model's name to its outputs, the same for every transport."""

import asyncio
import dataclasses
from collections.abc import Callable, Sequence

import grpc
from tensorflow_serving.apis import model_pb2

from serving.batching import Batcher
from serving.refusal import Refused
from serving.servables import Servables
from serving.signatures import Arrays, Signature


@dataclasses.dataclass
class Predictor:
    """Answers requests within a time."""

    servables: Servables
    batcher: Batcher
    timeout_seconds: float

    async def predict(
        self,
        spec: model_pb2.ModelSpec,
        read: Callable[[Signature], Arrays],
        output_filter: Sequence[str] = (),
    ) -> tuple[model_pb2.ModelSpec, Arrays]:
        """Runs a signature.

        Args:
            spec: ModelSpec. The model, and where wanted its version and signature.
            read: Callable. Makes the inputs that a signature wants from the request.
            output_filter: Names of the wanted outputs; empty means all.

        Returns:
            What has answered, and the outputs by name.
        """
        servable = self.servables.find(spec)
        with servable.in_use():
            signature = servable.signature(spec.signature_name)
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
        answered = model_pb2.ModelSpec(name=servable.name, signature_name=signature.name)
        answered.version.value = servable.version
        return answered, {name: outputs[name] for name in wanted}
