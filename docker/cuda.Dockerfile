# zerokl on an NVIDIA GPU:  docker build -f docker/cuda.Dockerfile -t zerokl:cuda .
#   docker run --gpus all -p 30000:30000 -v /models:/models:ro zerokl:cuda serve --device cuda --host 0.0.0.0 /models/NAME
# torch brings CUDA's libraries along; the host needs only a driver and the NVIDIA container toolkit.
FROM rust:1-slim-bookworm AS build
RUN apt-get update && apt-get install --no-install-recommends -y python3 python3-venv && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /build && /build/bin/pip install --no-cache-dir "maturin>=1.12,<2"
WORKDIR /source
COPY pyproject.toml Cargo.toml Cargo.lock README.md LICENSE ./
COPY crates crates
COPY src src
RUN /build/bin/maturin build --release --locked --out /wheels

FROM python:3.11-slim-bookworm
# Triton compiles its launchers with the system's C compiler.
RUN apt-get update && apt-get install --no-install-recommends -y gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    for wheel in /wheels/*.whl; do pip install --no-cache-dir "$wheel[cuda]"; done
ENV ZEROKL_CACHE=/cache HF_HOME=/cache/huggingface TRITON_CACHE_DIR=/cache/triton
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN useradd --create-home zerokl && install -d -o zerokl /cache
USER zerokl
VOLUME /cache
EXPOSE 30000
HEALTHCHECK --interval=10s --timeout=5s --start-period=900s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:30000/health', timeout=4)"]
ENTRYPOINT ["zerokl"]
CMD ["serve", "--device", "cuda", "--host", "0.0.0.0"]
