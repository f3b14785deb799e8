# zerokl on the CPU:  docker build -f docker/cpu.Dockerfile -t zerokl .
#   docker run -p 30000:30000 -v zerokl-cache:/cache zerokl                       the default model, fetched once
#   docker run -p 30000:30000 -v /models:/models:ro zerokl serve --host 0.0.0.0 /models/NAME   a folder or a GGUF file
FROM rust:1-slim-bookworm AS build
RUN apt-get update && apt-get install --no-install-recommends -y python3 python3-venv && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /build && /build/bin/pip install --no-cache-dir "maturin>=1.12,<2"
WORKDIR /source
COPY pyproject.toml Cargo.toml Cargo.lock README.md LICENSE ./
COPY crates crates
COPY src src
RUN /build/bin/maturin build --release --locked --out /wheels

FROM python:3.11-slim-bookworm
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels pip install --no-cache-dir /wheels/*.whl
ENV ZEROKL_CACHE=/cache HF_HOME=/cache/huggingface
RUN useradd --create-home zerokl && install -d -o zerokl /cache
USER zerokl
VOLUME /cache
EXPOSE 30000
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:30000/health', timeout=4)"]
ENTRYPOINT ["zerokl"]
CMD ["serve", "--host", "0.0.0.0"]
