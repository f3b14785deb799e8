//! The frontend's view of the engine: is it there, and what does it say about itself.
//!
//! The connection is kept up by one task: an engine that dies takes its open requests with it and is waited for again;
//! until it is back every new request is refused with 503.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Map, Value};
use zerokl_wire::{Heartbeat, Hello};

use crate::client::{CallError, Client, locked};
use crate::flights::{Flights, Records};
use crate::job::Job;
use crate::prompts::Limits;
use crate::refusal::Refusal;

const RETRY: Duration = Duration::from_millis(50);

pub struct Engine {
    pub flights: Arc<Flights>,
    pub draining: AtomicBool,
    socket: PathBuf,
    /// A step that takes longer is stuck.
    watchdog_s: f64,
    /// An engine that said nothing for so long is not healthy. A long step is no silence: heartbeats go on.
    silent: Duration,
    client: Mutex<Option<Arc<Client>>>,
    was_there: AtomicBool,
}

impl Engine {
    pub fn new(socket: PathBuf, places: usize, watchdog_s: f64, silent: Duration) -> Self {
        Self {
            flights: Arc::new(Flights::new(places)),
            draining: AtomicBool::new(false),
            socket,
            watchdog_s,
            silent,
            client: Mutex::default(),
            was_there: AtomicBool::new(false),
        }
    }

    /// Connect, and re-connect, for as long as this is awaited; tells of the first time.
    pub async fn keep_connected(&self, connected: impl FnOnce()) {
        let mut connected = Some(connected);
        loop {
            match Client::connect(&self.socket).await {
                Err(why) => {
                    tracing::debug!("no engine yet: {why}");
                    tokio::time::sleep(RETRY).await;
                }
                Ok(client) => {
                    *locked(&self.client) = Some(client.clone());
                    self.was_there.store(true, Ordering::Relaxed);
                    if let Some(tell) = connected.take() {
                        tell();
                    }
                    client.ended().await;
                    *locked(&self.client) = None;
                    tracing::warn!("the engine hung up; waiting for the next one");
                }
            }
        }
    }

    /// Why no request can be taken now ("starting", "draining", "engine_down"), or None.
    pub fn trouble(&self) -> Option<&'static str> {
        if self.draining.load(Ordering::Relaxed) {
            return Some("draining");
        }
        let Some(client) = self.connection() else {
            return Some(if self.was_there.load(Ordering::Relaxed) { "engine_down" } else { "starting" });
        };
        let stuck = client.heartbeat().is_some_and(|beat| f64::from(beat.busy_ms) > 1000.0 * self.watchdog_s);
        (stuck || client.silence() >= self.silent).then_some("engine_down")
    }

    fn connection(&self) -> Option<Arc<Client>> {
        locked(&self.client).clone()
    }

    /// The live connection, or 503 if there is none or the server is going down.
    pub fn client(&self) -> Result<Arc<Client>, Refusal> {
        match (self.trouble(), self.connection()) {
            (None, Some(client)) => Ok(client),
            (trouble, _) => Err(Refusal::trouble(trouble.unwrap_or("engine_down"))),
        }
    }

    pub fn hello(&self) -> Result<Hello, Refusal> {
        Ok(self.client()?.hello.clone())
    }

    /// The engine's last, with its queue depths.
    pub fn heartbeat(&self) -> Option<Heartbeat> {
        self.connection()?.heartbeat()
    }

    /// Of the engine's cache; 0 while there is none.
    pub fn page_size(&self) -> u32 {
        self.connection().map_or(0, |client| client.hello.page_size)
    }

    /// What the engine tells about the model and itself.
    pub fn facts(&self) -> Result<Map<String, Value>, Refusal> {
        serde_json::from_str(&self.client()?.hello.facts).map_err(Refusal::internal)
    }

    pub fn limits(&self) -> Result<Limits, Refusal> {
        let client = self.client()?;
        Ok(Limits { vocab: client.hello.vocab, context: client.hello.context as usize })
    }

    /// The engine's, or "" while there is none (error answers carry the header too).
    pub fn fingerprint(&self) -> String {
        self.connection().map_or_else(String::new, |client| client.hello.fingerprint.clone())
    }

    /// Run the jobs on the engine that is there now. `unique`: a client chose the names.
    pub fn run(&self, jobs: Vec<Arc<Job>>, names: Vec<String>, unique: bool) -> Result<Records, Refusal> {
        self.flights.run(self.client()?, jobs, names, unique)
    }

    /// A control call; the engine's no is the inner error.
    pub async fn control(&self, name: &str, args: Value) -> Result<Result<Map<String, Value>, String>, Refusal> {
        match self.client()?.control(name, &args).await {
            Ok(body) => Ok(Ok(body)),
            Err(CallError::Refused(why)) => Ok(Err(why)),
            Err(CallError::Gone) => Err(Refusal::engine_lost()),
        }
    }
}
