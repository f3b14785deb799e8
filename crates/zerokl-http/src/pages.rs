//! Pages that are the same for every server: the playground, and the API's own description.

use crate::app::not_found;
use crate::exchange::{Answer, Exchange, HTML, JSON, add_header, answer};
use crate::refusal::Refusal;
use crate::service::Service;

const PLAYGROUND: &str = include_str!("../../../src/zerokl/server/playground.html");
const DOCS: &str = include_str!("../../../src/zerokl/server/docs.html");
/// Written by `make docs` from the Python frontend's own.
const OPENAPI: &str = include_str!("../data/openapi.json");
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub fn playground(service: &Service, exchange: &Exchange) -> Result<Answer, Refusal> {
    if service.config.disable_playground {
        return Err(not_found(&exchange.path));
    }
    let mut page = answer(200, PLAYGROUND, HTML);
    add_header(&mut page, "content-security-policy", POLICY);
    Ok(page)
}

pub fn openapi() -> Answer {
    answer(200, OPENAPI, JSON)
}

pub fn docs() -> Answer {
    answer(200, DOCS, HTML)
}
