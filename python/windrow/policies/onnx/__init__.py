"""Policies as ONNX: models that are read and evaluated, and graphs that are written."""
