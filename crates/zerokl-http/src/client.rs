//! The frontend's end of the wire: many requests over one connection.
//!
//! One task reads and one writes. Records go straight into the channel of the request that waits for them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use serde_json::{Map, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use zerokl_wire::{
    Abort, Columns, Control, Heartbeat, Hello, PROTOCOL, Record, ToEngine, ToFrontend, WireError, decode, decode_step,
    encode,
};

const READ_BYTES: usize = 1 << 18;
const HELLO_S: u64 = 10;

/// What a request hears: a record of the job at this place, or (None) that the engine is gone. Boxed, for channels make
/// room for many at a time: a stream took 30 KB of it.
pub type News = Option<(usize, Box<Record>)>;

/// Where the records of one job go.
pub struct Listener {
    pub place: usize,
    pub sender: mpsc::UnboundedSender<News>,
    /// The job's place in the engine, free again after its last record.
    pub _permit: Option<OwnedSemaphorePermit>,
}

/// A control call that the engine answered with no, or a connection that ended.
pub enum CallError {
    Refused(String),
    Gone,
}

type Answered = Result<Map<String, Value>, CallError>;

#[derive(Default)]
struct Open {
    listeners: HashMap<u64, Listener>,
    calls: HashMap<u64, oneshot::Sender<Answered>>,
    closed: bool,
}

/// One connection to an engine.
pub struct Client {
    pub hello: Hello,
    began: Instant,
    heard_ms: AtomicU64,
    next_id: AtomicU64,
    heartbeat: Mutex<Option<Heartbeat>>,
    open: Mutex<Open>,
    outgoing: mpsc::UnboundedSender<Vec<u8>>,
    closed: watch::Sender<bool>,
}

impl Client {
    /// Connect and wait for the engine's hello. An error if nobody answers, or not in this protocol.
    pub async fn connect(path: &Path) -> Result<Arc<Self>, String> {
        let stream = UnixStream::connect(path).await.map_err(|error| error.to_string())?;
        let (mut input, output) = stream.into_split();
        let mut pending = BytesMut::with_capacity(READ_BYTES);
        let greeted = tokio::time::timeout(Duration::from_secs(HELLO_S), greeting(&mut input, &mut pending));
        let hello = greeted.await.map_err(|_| "the engine said no hello".to_owned())??;
        let (outgoing, unsent) = mpsc::unbounded_channel();
        let client = Arc::new(Self {
            hello,
            began: Instant::now(),
            heard_ms: AtomicU64::new(0),
            next_id: AtomicU64::new(1),
            heartbeat: Mutex::default(),
            open: Mutex::default(),
            outgoing,
            closed: watch::Sender::new(false),
        });
        tokio::spawn(write_all(output, unsent, client.closed.subscribe()));
        tokio::spawn(read_all(client.clone(), input, pending));
        Ok(client)
    }

    /// Returns when the connection has ended.
    pub async fn ended(&self) {
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
    }

    pub fn heartbeat(&self) -> Option<Heartbeat> {
        locked(&self.heartbeat).clone()
    }

    /// Since the engine's loop last said anything.
    pub fn silence(&self) -> Duration {
        self.began.elapsed().saturating_sub(Duration::from_millis(self.heard_ms.load(Ordering::Relaxed)))
    }

    /// Send one job. `frame` is made for the id that this returns.
    pub fn submit(
        &self,
        frame: impl FnOnce(u64) -> Result<Vec<u8>, WireError>,
        listener: Listener,
    ) -> Result<u64, CallError> {
        let rid = self.next_id.fetch_add(1, Ordering::Relaxed);
        let frame = frame(rid).map_err(|error| CallError::Refused(error.to_string()))?;
        let mut open = locked(&self.open);
        if open.closed {
            return Err(CallError::Gone);
        }
        open.listeners.insert(rid, listener);
        drop(open);
        let _ = self.outgoing.send(frame);
        Ok(rid)
    }

    /// End a request; nothing happens if it is unknown or finished. It still sends a last record.
    pub fn abort(&self, rid: u64) {
        if locked(&self.open).listeners.contains_key(&rid) {
            self.send(&ToEngine::Abort(Abort { rid, message: "Aborted".into() }));
        }
    }

    /// Abort, and want no more records: the client of this request is gone.
    pub fn discard(&self, rid: u64) {
        let listener = locked(&self.open).listeners.remove(&rid);
        if listener.is_some() {
            self.send(&ToEngine::Abort(Abort { rid, message: "Aborted".into() }));
        }
    }

    /// A control call and its answer.
    pub async fn control(&self, name: &str, args: &Value) -> Answered {
        let call = self.next_id.fetch_add(1, Ordering::Relaxed);
        let receiver = self.expect_answer(call).ok_or(CallError::Gone)?;
        self.send(&ToEngine::Control(Control { call, name: name.into(), args: args.to_string() }));
        receiver.await.unwrap_or(Err(CallError::Gone))
    }

    /// None: nobody is there to answer.
    fn expect_answer(&self, call: u64) -> Option<oneshot::Receiver<Answered>> {
        let (sender, receiver) = oneshot::channel();
        let mut open = locked(&self.open);
        (!open.closed).then(|| {
            open.calls.insert(call, sender);
            receiver
        })
    }

    fn send(&self, message: &ToEngine) {
        if let Ok(frame) = encode(message, &Columns::default()) {
            let _ = self.outgoing.send(frame);
        }
    }

    fn receive(&self, message: ToFrontend, columns: &[u8]) -> Result<(), WireError> {
        match message {
            ToFrontend::Step(step) => self.deliver(decode_step(step, columns)?),
            ToFrontend::Heartbeat(heartbeat) => *locked(&self.heartbeat) = Some(heartbeat),
            ToFrontend::Answer(answer) => {
                let Some(sender) = locked(&self.open).calls.remove(&answer.call) else { return Ok(()) };
                let body: Map<String, Value> =
                    serde_json::from_str(&answer.body).map_err(|error| WireError(error.to_string()))?;
                let why = || body.get("message").and_then(Value::as_str).unwrap_or("refused").to_owned();
                let result = if answer.ok { Ok(body) } else { Err(CallError::Refused(why())) };
                let _ = sender.send(result);
            }
            ToFrontend::Hello(_) => {}
        }
        Ok(())
    }

    /// To whom they belong; a record of a request that was discarded is dropped.
    fn deliver(&self, records: Vec<Record>) {
        let mut open = locked(&self.open);
        for record in records {
            let rid = record.rid;
            let ended = record.done.is_some();
            if let Some(listener) = open.listeners.get(&rid) {
                let _ = listener.sender.send(Some((listener.place, Box::new(record))));
            }
            if ended {
                open.listeners.remove(&rid);
            }
        }
    }

    fn end(&self) {
        let mut open = locked(&self.open);
        open.closed = true;
        for (_, listener) in open.listeners.drain() {
            let _ = listener.sender.send(None);
        }
        open.calls.clear();
        self.closed.send_replace(true);
    }
}

/// A lock that a panic elsewhere doesn't spoil: what it guards is changed in single steps.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn greeting(input: &mut OwnedReadHalf, pending: &mut BytesMut) -> Result<Hello, String> {
    loop {
        if let Some(frame) = decode::<ToFrontend>(pending).map_err(|error| error.to_string())? {
            let ToFrontend::Hello(hello) = frame.message else { return Err("the engine said no hello".into()) };
            let size = frame.size;
            pending.advance(size);
            if hello.protocol != PROTOCOL {
                return Err(format!("the engine speaks protocol {}, this frontend {PROTOCOL}", hello.protocol));
            }
            return Ok(hello);
        }
        if input.read_buf(pending).await.map_err(|error| error.to_string())? == 0 {
            return Err("the engine hung up".into());
        }
    }
}

async fn read_all(client: Arc<Client>, mut input: OwnedReadHalf, mut pending: BytesMut) {
    loop {
        client.heard_ms.store(client.began.elapsed().as_millis() as u64, Ordering::Relaxed);
        if let Err(error) = take_frames(&client, &mut pending) {
            tracing::error!("the engine sent what is no message: {error}");
            break;
        }
        pending.reserve(READ_BYTES);
        match input.read_buf(&mut pending).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
    client.end();
}

fn take_frames(client: &Client, pending: &mut BytesMut) -> Result<(), WireError> {
    while let Some(frame) = decode::<ToFrontend>(pending)? {
        let size = frame.size;
        client.receive(frame.message, frame.columns)?;
        pending.advance(size);
    }
    Ok(())
}

/// What has gathered goes out in one write.
async fn write_all(
    mut output: OwnedWriteHalf,
    mut unsent: mpsc::UnboundedReceiver<Vec<u8>>,
    mut closed: watch::Receiver<bool>,
) {
    let mut frames = Vec::new();
    loop {
        tokio::select! {
            count = unsent.recv_many(&mut frames, 64) => if count == 0 { return },
            _ = closed.wait_for(|closed| *closed) => return,
        }
        if output.write_all(&frames.concat()).await.is_err() {
            return;
        }
        frames.clear();
    }
}
