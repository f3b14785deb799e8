//! Routes that change the server or stop requests: cache, aborts, weights.

use serde_json::{Value, json};

use crate::exchange::{Answer, Exchange, TEXT, answer, json_with_status};
use crate::fields::message;
use crate::python;
use crate::refusal::Refusal;
use crate::service::Service;
use crate::validate::{bad_value, check};

const LONGEST_FLUSH_S: f64 = 3600.0;

/// Only an idle engine flushes; with a timeout it is waited for. `tier=device` leaves the host tier, at any time.
pub async fn flush_cache(service: &Service, exchange: &Exchange) -> Result<Answer, Refusal> {
    let timeout_s = timeout(exchange)?;
    if query(exchange, "tier").as_deref() == Some("device") {
        service.engine.control("flush_device_cache", json!({})).await?.map_err(Refusal::invalid)?;
        return Ok(answer(200, "Device cache flushed.\n", TEXT));
    }
    let flushed = service.engine.control("flush_cache", json!({"timeout_s": timeout_s})).await?;
    if flushed.is_err() {
        let running = service.engine.flights.len();
        return Err(Refusal::invalid(message("busy", &[("running", &running)])).code("busy"));
    }
    Ok(answer(200, "Cache flushed.\n", TEXT))
}

/// A parameter of the query, the last of its name; an empty one is none.
fn query(exchange: &Exchange, name: &str) -> Option<String> {
    let plain = |text: &str| python::unquote(&text.replace('+', " "));
    let pairs = exchange.query.split('&').filter_map(|pair| pair.split_once('='));
    let mut found = pairs.filter(|(_, value)| !value.is_empty()).filter(|(key, _)| plain(key) == name);
    found.next_back().map(|(_, value)| plain(value))
}

/// The query's `timeout` in seconds; absent or empty: don't wait.
fn timeout(exchange: &Exchange) -> Result<f64, Refusal> {
    let given = query(exchange, "timeout").unwrap_or_else(|| "0".into());
    let seconds = python::float(&given).filter(|seconds| (0.0..=LONGEST_FLUSH_S).contains(seconds));
    let expected = format!("a number of seconds from 0 to {LONGEST_FLUSH_S}");
    seconds.ok_or_else(|| bad_value("timeout", &expected, &Value::String(given)))
}

/// Aborted requests end normally, with finish reason abort and the tokens so far. An unknown rid is no error.
pub async fn abort_request(service: &Service, exchange: &mut Exchange) -> Result<Answer, Refusal> {
    let values = check("abort_request", exchange.json().await?, "", false)?;
    let rid = values.text("rid").filter(|rid| !rid.is_empty());
    let everything = values.flag("abort_all");
    if rid.is_none() && !everything {
        return Err(Refusal::invalid(message("abort_needs", &[])));
    }
    service.engine.flights.abort(rid.filter(|_| !everything));
    Ok(answer(200, "", ""))
}

pub async fn update_weights_from_disk(exchange: &mut Exchange) -> Result<Answer, Refusal> {
    check("update_weights_from_disk", exchange.json().await?, "", false)?;
    let text = message("weights", &[]);
    json_with_status(400, &json!({"success": false, "message": text, "num_paused_requests": 0}))
}
