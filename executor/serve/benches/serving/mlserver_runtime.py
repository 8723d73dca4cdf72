"""What MLServer runs in the bench: an ONNX model by ONNX Runtime on one core."""

import numpy
import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse


class Onnx(MLModel):
    async def load(self):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        uri = self.settings.parameters.uri
        providers = ["CPUExecutionProvider"]
        self.session = onnxruntime.InferenceSession(uri, options, providers=providers)
        self.input_names = [tensor.name for tensor in self.session.get_inputs()]
        self.output_names = [tensor.name for tensor in self.session.get_outputs()]
        return True

    async def predict(self, payload):
        tensors = [NumpyCodec.decode_input(tensor) for tensor in payload.inputs]
        tensors = [tensor.astype(numpy.float32, copy=False) for tensor in tensors]
        outputs = self.session.run(self.output_names, dict(zip(self.input_names, tensors)))
        named = zip(self.output_names, outputs)
        encoded = [NumpyCodec.encode_output(name, output) for name, output in named]
        return InferenceResponse(model_name=self.name, outputs=encoded)
