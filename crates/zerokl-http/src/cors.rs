//! Cross-origin headers, off unless --allow-origins names somebody.

use crate::exchange::{Answer, add_header, add_raw_header};

const EXPOSED: &str = "x-request-id, x-zerokl-fingerprint, x-zerokl-seed";

/// For every answer to an origin that is allowed.
pub fn add_origin_headers(answer: &mut Answer, allowed: &[String], origin: &[u8]) {
    let anybody = allowed.iter().any(|one| one == "*");
    let named = anybody || allowed.iter().any(|one| one.as_bytes() == origin);
    if origin.is_empty() || !named {
        return;
    }
    add_raw_header(answer, "access-control-allow-origin", if anybody { b"*" } else { origin });
    if !anybody {
        add_header(answer, "vary", "origin");
    }
    add_header(answer, "access-control-expose-headers", EXPOSED);
}

/// To a browser that asks before it sends.
pub fn add_preflight_headers(answer: &mut Answer) {
    add_header(answer, "access-control-allow-methods", "GET, HEAD, OPTIONS, POST, PUT");
    add_header(answer, "access-control-allow-headers", "*, authorization, content-type");
    add_header(answer, "access-control-max-age", "600");
}
