//! /metrics: the Python frontend's list of figures, under the same names.
//!
//! Nothing here waits for the engine: what only it knows comes with its heartbeats.

use crate::exchange::{Answer, answer};
use crate::exposition::{CONTENT_TYPE, Family, Number, Sample, exposition};
use crate::meter::Meter;
use crate::refusal::Refusal;
use crate::service::Service;

pub fn metrics(service: &Service) -> Result<Answer, Refusal> {
    let mut list = List::default();
    list.engine(service);
    list.requests(&service.engine.flights.meter());
    Ok(answer(200, exposition(list.families, service.model_name()), CONTENT_TYPE))
}

#[derive(Default)]
struct List {
    families: Vec<Family>,
}

impl List {
    fn engine(&mut self, service: &Service) {
        let engine = &service.engine;
        let beat = engine.heartbeat();
        let of = |figure: fn(&zerokl_wire::Heartbeat) -> u64| beat.as_ref().map_or(0, figure);
        let page = u64::from(engine.page_size());
        let (leased, pages) = (of(|beat| beat.leased_pages.into()), of(|beat| beat.num_pages.into()));
        let usage = if pages == 0 { 0.0 } else { leased as f64 / pages as f64 };
        let step_s = of(|beat| beat.busy_ms.into()) as f64 / 1000.0;
        self.gauge("zerokl:engine_up", "1 if requests can be taken.", engine.trouble().is_none().into());
        self.float("zerokl:step_seconds", "How long the running step has taken.", step_s);
        self.gauge("zerokl:num_requests_in_flight", "Admitted by the frontend.", engine.flights.len() as u64);
        let names = "zerokl:num_running_reqs sglang:num_running_reqs vllm:num_requests_running";
        self.gauge(names, "Requests in the engine's batch.", of(|beat| beat.running.into()));
        let names = "zerokl:num_queue_reqs sglang:num_queue_reqs vllm:num_requests_waiting";
        self.gauge(names, "Requests that wait for a place in the batch.", of(|beat| beat.waiting.into()));
        let names = "zerokl:max_total_num_tokens sglang:max_total_num_tokens";
        self.gauge(names, "Token slots of the cache.", pages * page);
        let names = "zerokl:num_used_tokens sglang:num_used_tokens";
        self.gauge(names, "Token slots that requests use.", leased * page);
        let cached = of(|beat| beat.cached_pages.into());
        self.gauge("zerokl:num_cached_tokens", "Token slots kept for prefixes.", cached * page);
        let names = "zerokl:token_usage sglang:token_usage vllm:kv_cache_usage_perc";
        self.float(names, "Share of the cache that requests use, 0 to 1.", usage);
        self.counter("zerokl:steps_total", "Steps of the engine.", of(|beat| beat.step));
        self.counter(
            "zerokl:prefill_tokens_total",
            "Tokens run that were known before.",
            of(|beat| beat.prefill_tokens),
        );
        self.counter("zerokl:sampled_tokens_total", "Tokens drawn.", of(|beat| beat.sampled_tokens));
        let names = "zerokl:prefix_cache_queries_total vllm:prefix_cache_queries_total";
        self.counter(names, "Tokens that the prefix cache was asked for.", of(|beat| beat.lookup_tokens));
        let names = "zerokl:prefix_cache_hits_total vllm:prefix_cache_hits_total";
        self.counter(names, "Tokens that the prefix cache had.", of(|beat| beat.hit_tokens));
        let stopped = [
            ("limit", of(|beat| beat.stopped_limit)),
            ("full", of(|beat| beat.stopped_full)),
            ("sliding", of(|beat| beat.stopped_sliding)),
            ("state", of(|beat| beat.stopped_state)),
        ];
        let text = "Lookups of prefixes, by what kept the match from being longer.";
        self.family("zerokl:prefix_matches_total", "counter", text, || by("stopped_by", &stopped));
        let text = "Tokens that ran again though their keys were cached, for want of a window or a state.";
        self.counter("zerokl:prefix_lost_tokens_total", text, of(|beat| beat.lost_tokens));
        let names = "zerokl:num_preemptions_total vllm:num_preemptions_total";
        self.counter(names, "Requests put back into the queue for want of pages.", of(|beat| beat.preemptions));
    }

    fn requests(&mut self, meter: &Meter) {
        let answers = meter.answers.iter().map(|((path, status), count)| Sample {
            suffix: "",
            labels: vec![("path", path.clone()), ("status", status.clone())],
            value: Number::Whole(*count),
        });
        self.family("zerokl:http_answers_total", "counter", "By path and status.", || answers.clone().collect());
        let names = "zerokl:num_requests_total sglang:num_requests_total";
        self.counter(names, "Sequences taken in.", meter.started);
        let finished = meter.finished.iter().map(|(reason, count)| Sample {
            suffix: "",
            labels: vec![("finished_reason", reason.clone())],
            value: Number::Whole(*count),
        });
        let names = "zerokl:request_success_total vllm:request_success_total";
        self.family(names, "counter", "Sequences that ended, by reason.", || finished.clone().collect());
        let names = "zerokl:num_aborted_requests_total sglang:num_aborted_requests_total";
        self.counter(names, "Sequences that were aborted.", meter.finished.get("abort").copied().unwrap_or(0));
        let names = "zerokl:prompt_tokens_total sglang:prompt_tokens_total vllm:prompt_tokens_total";
        self.counter(names, "Tokens of prompts.", meter.prompt_tokens);
        let names = "zerokl:generation_tokens_total sglang:generation_tokens_total vllm:generation_tokens_total";
        self.counter(names, "Tokens of answers.", meter.generation_tokens);
        let names = "zerokl:cached_tokens_total sglang:cached_tokens_total";
        self.counter(names, "Tokens of prompts that came from the prefix cache.", meter.cached_tokens);
        for (name, text, histogram) in [
            ("time_to_first_token_seconds", "From admission to the first token of a stream.", &meter.first_token_s),
            ("inter_token_latency_seconds", "Between the tokens of a stream.", &meter.between_tokens_s),
            ("e2e_request_latency_seconds", "From admission to the last token.", &meter.request_s),
        ] {
            let names = format!("zerokl:{name} sglang:{name} vllm:{name}");
            self.family(&names, "histogram", text, || histogram.samples());
        }
    }

    fn gauge(&mut self, names: &str, help: &'static str, value: u64) {
        self.family(names, "gauge", help, || plain(Number::Whole(value)));
    }

    fn float(&mut self, names: &str, help: &'static str, value: f64) {
        self.family(names, "gauge", help, || plain(Number::Float(value)));
    }

    fn counter(&mut self, names: &str, help: &'static str, value: u64) {
        self.family(names, "counter", help, || plain(Number::Whole(value)));
    }

    /// The same figure under each name.
    fn family(&mut self, names: &str, kind: &'static str, help: &'static str, samples: impl Fn() -> Vec<Sample>) {
        let each = names.split(' ').map(|name| Family { name: name.to_owned(), kind, help, samples: samples() });
        self.families.extend(each);
    }
}

fn by(label: &'static str, values: &[(&str, u64)]) -> Vec<Sample> {
    let each = values.iter().map(|(name, count)| (vec![(label, (*name).to_owned())], Number::Whole(*count)));
    each.map(|(labels, value)| Sample { suffix: "", labels, value }).collect()
}

fn plain(value: Number) -> Vec<Sample> {
    vec![Sample { suffix: "", labels: Vec::new(), value }]
}
