//! Who may call what: open routes, user routes, admin routes. Keys are compared in constant time.

use subtle::ConstantTimeEq;

use crate::config::Config;
use crate::fields::message;
use crate::refusal::Refusal;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Open,
    User,
    Admin,
}

pub struct Keys {
    api: Vec<Vec<u8>>,
    admin: Option<Vec<u8>>,
}

impl Keys {
    pub fn of(config: &Config) -> Self {
        let key = |text: &String| (!text.is_empty()).then(|| text.clone().into_bytes());
        Self { api: config.api_key.iter().filter_map(key).collect(), admin: key(&config.admin_api_key) }
    }

    /// 401 or 403. An admin route needs the admin key if there is one, else the api key.
    pub fn admit(&self, access: Access, authorization: &[u8]) -> Result<(), Refusal> {
        let admin = self.admin.as_slice();
        let wanted = if access == Access::Admin && self.admin.is_some() { admin } else { &self.api };
        if access == Access::Open || wanted.is_empty() {
            return Ok(());
        }
        let given = bearer(authorization);
        if among(given, wanted) || (access == Access::User && among(given, admin)) {
            return Ok(());
        }
        if access == Access::Admin && self.admin.is_some() && among(given, &self.api) {
            return Err(Refusal::new(403, message("admin_only", &[])));
        }
        let key = if given.is_empty() { "no_key" } else { "bad_key" };
        Err(Refusal::new(401, message(key, &[])).code("invalid_api_key"))
    }
}

fn bearer(authorization: &[u8]) -> &[u8] {
    let header = authorization.trim_ascii();
    let Some(place) = header.iter().position(|byte| *byte == b' ') else { return b"" };
    if header[..place].eq_ignore_ascii_case(b"bearer") { header[place + 1..].trim_ascii() } else { b"" }
}

/// Every key is compared, so the time tells nothing about which one was near.
fn among(given: &[u8], keys: &[Vec<u8>]) -> bool {
    let equal = keys.iter().fold(0, |sum, key| sum | given.ct_eq(key).unwrap_u8());
    equal != 0 && !given.is_empty()
}
