"""What each of SGLang's launch flags means here: the one table behind `launch_server.py` and docs/sglang-flags.md.

    mapped    an option of ours                      always    what zerokl does in any case
    idle      no meaning here; no bit depends on it  only      accepted with certain values
    refused   asks for what zerokl can't do: an error that says so, because ignoring it would be a lie

A name that ends in `*` stands for all flags that begin so; the first row that fits counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["mapped", "always", "idle", "only", "refused"]


@dataclass(frozen=True, slots=True)
class Row:
    names: tuple[str, ...]
    kind: Kind
    why: str = ""
    """For people: the log line, the error or the table's last column."""
    field: str = ""
    """mapped: the config field."""
    values: tuple[str, ...] = ()
    """only: those accepted."""
    same_as: tuple[tuple[str, str], ...] = ()
    """mapped: SGLang's words for our values."""


def mapped(names: str, field: str, why: str = "", **same_as: str) -> Row:
    return Row(tuple(names.split()), "mapped", why, field=field, same_as=tuple(same_as.items()))


def always(names: str, why: str) -> Row:
    return Row(tuple(names.split()), "always", why)


def idle(names: str, why: str) -> Row:
    return Row(tuple(names.split()), "idle", why)


def only(names: str, values: str, why: str) -> Row:
    return Row(tuple(names.split()), "only", why, values=tuple(values.split()))


def refused(names: str, why: str) -> Row:
    return Row(tuple(names.split()), "refused", why)


KERNELS = "kernels are chosen by their bits, not by flags"
GRAPHS = "captured steps change no bit; --disable-cuda-graph turns them off"
ONE_RANK = "several devices share a model by --tp alone"
BY_TORCHRUN = "several machines: by torchrun, docs/tensor-parallel.md"
TEXT_ONLY = "text models only"
NO_SPECULATION = "no speculative decoding yet; its answers would be the same"

TABLE = (
    # Model
    mapped("--model-path --model", "model"),
    mapped("--tokenizer-path", "tokenizer_path"),
    mapped("--revision", "revision"),
    mapped("--served-model-name", "served_model_name"),
    mapped("--dtype", "dtype", half="float16", float="float32"),
    mapped("--load-format", "load_format"),
    mapped("--context-length", "context_length"),
    mapped("--chat-template", "chat_template", "a file; templates aren't known by name"),
    mapped("--weight-version", "weight_version"),
    idle("--trust-remote-code", "a model's own code is never run"),
    idle("--tokenizer-mode --tokenizer-backend", "always the fast tokenizer"),
    idle("--model-impl --model-config-parser", "one implementation per architecture"),
    idle(
        "--download-dir --weight-loader-* --startup-weight-load-mode", "files are mapped; the hub's own cache is used"
    ),
    mapped("--quantization", "quantization", "the checkpoint says how; a contradiction is an error"),
    mapped("--kv-cache-dtype", "kv_cache_dtype", "auto is float32 on the CPU", fp32="float32"),
    refused("--is-embedding", "no embedding models"),
    refused("--json-model-override-args --decrypted-*", "the model's config is used as it is"),
    refused("--skip-tokenizer-init", "text is always made"),
    # Numerics
    mapped("--random-seed", "random_seed"),
    mapped("--sampling-defaults", "sampling_defaults"),
    always("--enable-deterministic-inference", "there is no other mode"),
    always("--rl-on-policy-target", "scores of training and serving agree in any case"),
    always("--enable-fp32-lm-head", "logits are float32"),
    always("--triton-attention-reduce-in-fp32", "sums are float32"),
    only("--enable-tf32-matmul", "false", "TF32 is never used"),
    idle("--attention-backend --prefill-attention-backend --decode-attention-backend --sampling-backend", KERNELS),
    idle("--fp8-gemm-* --fp4-gemm-* --bf16-gemm-backend --dsa-* --dsv4-* --mamba-* --linear-attn-* --moe-*", KERNELS),
    idle("--triton-attention-* --flashinfer-* --disable-flashinfer-* --enable-fused-* --mm-attention-backend", KERNELS),
    idle("--enable-torch-compile --torch-compile-max-bs --disable-custom-all-reduce", KERNELS),
    idle("--enable-lean-attention --enable-nvidia-megakernel --enable-amd-monokernel --monokernel-backend", KERNELS),
    idle(
        "--enable-flashinfer-* --enforce-* --enable-aiter-* --disable-aiter-* --boundary-reduction --deepep-*", KERNELS
    ),
    idle("--fuseep-mode --enable-waterfill --disable-shared-experts-fusion --enable-dsa-* --enable-torch-*", KERNELS),
    idle("--enable-linear-* --linear-replayssm-* --enable-precise-* --enable-scattered-sconv", KERNELS),
    refused("--enable-w4a4-* --enable-deepseek-v4-fp4-indexer --qsa-indexer-dtype", "it would round otherwise"),
    refused(
        "--enable-mamba-cache-stochastic-rounding --enable-int8-* --int8-mamba-ckpt-size", "it would round otherwise"
    ),
    refused("--enable-quant-communications --rl-quant-profile", "it would round otherwise"),
    # Memory and scheduling
    mapped("--page-size", "page_size"),
    mapped("--max-total-tokens", "max_total_tokens"),
    mapped("--mem-fraction-static", "mem_fraction_static"),
    mapped("--max-running-requests", "max_running_requests"),
    mapped("--max-queued-requests", "max_queued_requests"),
    mapped("--chunked-prefill-size", "chunked_prefill_size", "-1 keeps the default: chunks change no bit"),
    mapped("--disable-radix-cache", "disable_radix_cache"),
    mapped("--device", "device"),
    mapped("--disable-cuda-graph --disable-decode-cuda-graph", "disable_cuda_graph"),
    mapped("--disable-prefill-cuda-graph", "disable_prefill_cuda_graph"),
    mapped("--cuda-graph-bs --cuda-graph-bs-decode", "cuda_graph_bs"),
    idle("--cuda-graph-* --disable-cuda-graph-padding --debug-cuda-graph --enable-cudagraph-gc", GRAPHS),
    idle("--disable-overlap-schedule --schedule-policy --schedule-conservativeness --max-prefill-tokens", "policy"),
    idle("--enable-mixed-chunk --num-continuous-decode-steps --enable-dynamic-chunking --prefill-*", "policy"),
    idle("--radix-eviction-policy --radix-cache-backend --disable-chunked-prefix-cache", "one cache, oldest first"),
    idle("--enable-priority-scheduling --disable-priority-preemption", "a request's priority always counts"),
    mapped("--enable-hierarchical-cache --enable-hicache", "enable_hierarchical_cache"),
    mapped("--hicache-ratio", "hicache_ratio"),
    idle("--hicache-* --enable-lmcache --enable-flexkv", "one host tier, filled when the device evicts"),
    mapped("--watchdog-timeout", "watchdog_timeout"),
    idle("--soft-watchdog-timeout --sleep-on-idle --gc-threshold", "`--watchdog-timeout` watches"),
    idle("--cpu-offload-gb --enable-memory-saver --numa-node", "weights stay where they are"),
    idle("--speculative-* --enable-multi-layer-eagle --spec-trace-dir", NO_SPECULATION),
    idle("--radix-eviction-policy-config --enable-page-major-kv-layout --enable-unified-memory", "one cache"),
    idle("--lmcache-config-file --flexkv-config-file --hierarchical-sparse-* --hisparse-config", "one host tier"),
    idle("--unified-cache-* --enable-unified-cache-* --enable-linker-mla-dedup", "one cache"),
    idle("--default-priority-value --priority-scheduling-* --retraction-policy --scheduler-recv-interval", "policy"),
    idle("--enable-prefill-delayer --min-free-slots-delay --max-mamba-cache-size --c128-page-size", "policy"),
    idle("--swa-prefix-tails --enable-encoder-swa-* --enable-decoder-swa-*", "weights and cache stay put"),
    idle("--offload-* --ple-offload-*", "weights and cache stay put"),
    idle(
        "--enable-weights-cpu-backup --enable-draft-weights-cpu-backup --weight-cache-*", "weights and cache stay put"
    ),
    idle("--context-bucket --enable-profile-cuda-graph --enable-layerwise-nvtx-marker", GRAPHS),
    refused("--abort-on-priority-when-disabled --schedule-low-priority-values-first", "higher always runs first"),
    refused("--enable-hisparse --enable-session-radix-cache --enable-paged-experts --paged-experts-*", "not there"),
    only("--swa-full-tokens-ratio --disable-hybrid-swa-memory", "", "sliding pages are half of the full ones"),
    # Several devices
    mapped("--tp-size --tensor-parallel-size --tp", "tp"),
    only("--pp-size --pipeline-parallel-size --pp --ep-size --expert-parallel-size --ep", "1", ONE_RANK),
    only("--dp-size --data-parallel-size --dp --attn-dp-size --attention-data-parallel-size", "1", ONE_RANK),
    only("--dcp-size --attn-cp-size --moe-dp-size", "1", ONE_RANK),
    only("--nnodes", "1", BY_TORCHRUN),
    only("--node-rank", "0", BY_TORCHRUN),
    only("--base-gpu-id", "0", ONE_RANK),
    only("--disaggregation-mode", "null", "no split of prefill and decode"),
    idle("--disaggregation-*", "no split of prefill and decode"),
    idle("--dist-init-addr --nccl-init-addr --nccl-port --dist-timeout --enable-p2p-check --pre-warm-nccl", ONE_RANK),
    idle("--gpu-id-step --load-balance-method --enable-nccl-nvls --enable-symm-mem --enable-mscclpp", ONE_RANK),
    only("--decode-context-parallel-size --attention-context-parallel-size --dwdp-size", "1", ONE_RANK),
    idle(
        "--ep-num-* --ep-dispatch-algorithm --init-expert-location --eplb-* --expert-* --mooncake-ib-device", ONE_RANK
    ),
    idle("--enable-single-batch-overlap --tbo-* --dcp-comm-backend --dcp-replicate-q-proj --cp-strategy", ONE_RANK),
    idle("--pp-max-micro-batch-size --pp-async-batch-depth --disable-attn-tp-gather --enable-attn-tp-*", ONE_RANK),
    idle("--enable-dp-lm-head --enable-tp-lm-head-* --enable-layernorm-sp --enable-megamoe-*", ONE_RANK),
    idle("--enable-dense-mlp-attn-tp --enable-shared-experts-attn-tp --enable-cp-decode-attn-tp", ONE_RANK),
    idle("--enable-dsa-cache-layer-split --gated-launch-port --engine-info-bootstrap-port", ONE_RANK),
    refused("--enable-prefill-cp --enable-kv-cache-sharding --enable-dp-attention-*", ONE_RANK),
    refused("--shared-experts-tp-size --ep-join-* --elastic-ep-* --max-ep-size --enable-elastic-*", ONE_RANK),
    refused("--decoupled-spec-* --encoder-* --enable-pdmux --pdmux-config-path --sm-group-num", ONE_RANK),
    idle("--num-reserved-decode-tokens --optimistic-prefill-attempts --enable-pd-role-switch", ONE_RANK),
    refused("--use-ray --enable-dp-attention --enable-eplb --enable-two-batch-overlap --elastic-ep-backend", ONE_RANK),
    # Server
    mapped("--host", "host"),
    mapped("--port", "port"),
    mapped("--api-key", "api_key"),
    mapped("--admin-api-key", "admin_api_key"),
    mapped("--incremental-streaming-output", "incremental_streaming_output"),
    mapped("--log-level", "log_level", critical="error", warn="warning"),
    only("--stream-interval", "1", "a request's own stream_interval counts"),
    only("--fastapi-root-path", "", "routes stand at the root"),
    always("--enable-metrics --enable-cache-report", "/metrics and cached_tokens are always there"),
    always("--skip-server-warmup --warmups", "nothing needs warming up"),
    idle("--log-requests --log-requests-* --log-level-http --uvicorn-access-log-*", "prompts are never logged"),
    idle("--show-time-cost --decode-log-interval --enable-metrics-for-all-schedulers --bucket-*", "logs and metrics"),
    idle("--prompt-tokens-buckets --generation-tokens-buckets --enable-trace --otlp-* --crash-dump-folder", "logs"),
    idle("--tokenizer-worker-num --detokenizer-worker-num --enable-http2 --http2-*", "one frontend process"),
    idle(
        "--batch-notify-size --enable-tokenizer-batch-encode --disable-tokenizer-batch-decode", "one frontend process"
    ),
    idle("--enable-dynamic-batch-tokenizer --dynamic-batch-tokenizer-*", "one frontend process"),
    idle("--reasoning-parser", "reasoning stays in content"),
    mapped("--tool-call-parser", "tool_call_parser", qwen="qwen25"),
    idle("--grammar-backend --constrained-json-* --disable-outlines-disk-cache", "grammars are llguidance's"),
    idle("--file-storage-path --completion-template --hf-chat-template-name", "not used"),
    idle(
        "--enable-mfu-metrics --load-* --tokenizer-metrics-* --extra-metric-labels --gc-warning-*", "logs and metrics"
    ),
    idle("--enable-request-time-stats-logging --enable-forward-pass-metrics --forward-pass-*", "logs and metrics"),
    idle("--trace-modules --export-metrics-* --kv-canary* --asr-*", "logs and metrics"),
    idle("--enable-http-worker-reuseport --strip-thinking-cache", "not used"),
    refused("--kv-events-config --stat-loggers --msprobe-dump-config --tool-server", "not there"),
    refused("--enable-response-store --enable-streaming-session --enable-strict-thinking", "not there"),
    refused("--return-input-ids --return-output-ids", "a request asks for ids: return_token_ids"),
    refused("--stream-response-default-include-usage", "a request asks for usage: stream_options"),
    refused("--allow-auto-truncate", "a prompt that is too long is an error, never cut"),
    refused("--ssl-* --enable-ssl-refresh", "put a proxy in front for TLS"),
    refused("--preferred-sampling-params --default-chat-template-kwargs", "requests bring their own"),
    refused("--trust-request-chat-template", "templates are chosen at launch"),
    refused("--config", "flags only"),
    refused("--grpc-* --smg-* --sidecar --sidecar-args", "HTTP only"),
    # What zerokl doesn't have
    refused("--enable-lora --lora-* --max-lora-* --max-loras-per-batch --max-loaded-loras --uno-lora-path", "no LoRA"),
    refused("--enable-custom-logit-processor --enable-watermark --watermark-config", "sampling is the contract's"),
    refused("--enable-return-hidden-states --enable-return-routed-experts --dllm-*", "not there"),
    refused("--enable-multimodal --limit-mm-data-per-request --encoder-only --language-only", TEXT_ONLY),
    idle("--mm-* --enable-mm-* --image-processor-backend --disable-fast-image-processor", TEXT_ONLY),
    refused(
        "--modelopt-* --quantize-and-serve --quantization-param-path --kt-* --model-loader-extra-config", "not there"
    ),
    refused("--enable-lora-overlap-loading --experts-shared-outer-loras", "no LoRA"),
    refused("--enable-return-* --return-hidden-states-mode --return-aux-* --sampling-mask-* --enable-mis", "not there"),
    refused("--language-model-only --enable-adaptive-dispatch-to-encoder --allowed-media-domains", TEXT_ONLY),
    refused("--enable-broadcast-mm-inputs-process --enable-prefix-mm-cache --trust-mm-content-hashes", TEXT_ONLY),
    idle("--media-url-max-file-size-mb", TEXT_ONLY),
    refused("--mlx-enable-sampling --custom-sigquit-handler --modelexpress-config --model-checksum", "not there"),
    refused("--delete-ckpt-after-loading", "files are never deleted"),
    refused("--custom-weight-loader --remote-instance-* --checkpoint-engine-*", "not there"),
    refused("--debug-tensor-dump-* --forward-hooks", "not there"),
)


def find(flag: str) -> Row | None:
    """The row of a flag, or None: a name that SGLang doesn't have, or that nobody asked for yet."""
    return next((row for row in TABLE if any(_fits(flag, name) for name in row.names)), None)


def known_names() -> list[str]:
    return [name for row in TABLE for name in row.names if not name.endswith("*")]


def _fits(flag: str, name: str) -> bool:
    return flag.startswith(name[:-1]) if name.endswith("*") else flag == name
