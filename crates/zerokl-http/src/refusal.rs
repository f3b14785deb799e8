//! The one error form of every route.
//!
//! {"error":{"message":...,"type":...,"param":null or string,"code":null or string}}

use serde::Serialize;
use zerokl_wire::Done;

use crate::fields::message;

/// An error answer that is settled: status, code and headers beyond what the status itself brings.
#[derive(Debug, Clone)]
pub struct Refusal {
    pub status: u16,
    pub message: String,
    pub param: Option<String>,
    pub code: Option<String>,
    pub headers: Vec<(&'static str, String)>,
}

#[derive(Serialize)]
pub struct ErrorBody<'a> {
    error: ErrorFields<'a>,
}

#[derive(Serialize)]
struct ErrorFields<'a> {
    message: &'a str,
    r#type: &'static str,
    param: Option<&'a str>,
    code: Option<&'a str>,
}

impl Refusal {
    pub fn new(status: u16, message: String) -> Self {
        let headers = match status {
            401 => vec![("www-authenticate", "Bearer".to_owned())],
            // The OpenAI client retries 409 of its own accord, which can't help here.
            409 => vec![("x-should-retry", "false".to_owned())],
            429 => vec![("retry-after", "1".to_owned())],
            _ => Vec::new(),
        };
        Self { status, message, param: None, code: None, headers }
    }

    /// 400: the caller's fault.
    pub fn invalid(message: String) -> Self {
        Self::new(400, message)
    }

    pub fn param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    pub fn code(mut self, code: impl Into<String>) -> Self {
        self.code = Some(code.into());
        self
    }

    /// 503 for one of the engine's troubles, which is both the code and the message's key.
    pub fn trouble(code: &str) -> Self {
        Self::new(503, message(code, &[])).code(code)
    }

    /// 503: the engine hung up on this request.
    pub fn engine_lost() -> Self {
        Self::new(503, message("engine_lost", &[])).code("engine_down")
    }

    /// 500. What happened is for the log alone.
    pub fn internal(what: impl std::fmt::Display) -> Self {
        tracing::error!("a request failed: {what}");
        Self::new(500, message("internal", &[]))
    }

    pub fn body(&self) -> ErrorBody<'_> {
        let kind = match self.status {
            401 => "authentication_error",
            403 => "permission_error",
            429 => "rate_limit_error",
            500 | 503 => "server_error",
            _ => "invalid_request_error",
        };
        let (param, code) = (self.param.as_deref(), self.code.as_deref());
        ErrorBody { error: ErrorFields { message: &self.message, r#type: kind, param, code } }
    }
}

/// The refusal or failure that ended a job, if one did; an abort that somebody asked for is none.
pub fn refused(done: Option<&Done>) -> Option<Refusal> {
    let done = done?;
    let mut refusal = Refusal::new(u16::try_from(done.status?).unwrap_or(500), done.message.clone());
    refusal.param.clone_from(&done.param);
    refusal.code.clone_from(&done.code);
    Some(refusal)
}
