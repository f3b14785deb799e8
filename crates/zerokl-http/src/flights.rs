//! Requests in flight: who gets in, under which name, who is aborted, and their records as they come.
//!
//! A request is admitted whole while there is a place free. Of a batch that is larger than the places that are left, the
//! rest waits here and is submitted as places become free, so the engine never has to refuse a part of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::AbortHandle;
use zerokl_wire::{Done, Record};

use crate::client::{CallError, Client, Listener, News, locked};
use crate::fields::{message, shown_text};
use crate::job::Job;
use crate::meter::{Meter, Trip};
use crate::refusal::Refusal;
use crate::spans;

/// One job from its admission to its last record.
struct Flight {
    name: String,
    client: Arc<Client>,
    /// None while it waits for a place.
    rid: Option<u64>,
    aborted: bool,
}

#[derive(Default)]
struct Board {
    flights: HashMap<u64, Flight>,
    next: u64,
}

/// All requests of this frontend. `places`: how many the engine may have at a time.
pub struct Flights {
    places: usize,
    free: Arc<Semaphore>,
    meter: Mutex<Meter>,
    board: Mutex<Board>,
}

impl Flights {
    pub fn new(places: usize) -> Self {
        let free = Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS)));
        Self { places, free, meter: Mutex::new(Meter::new()), board: Mutex::default() }
    }

    pub fn meter(&self) -> MutexGuard<'_, Meter> {
        locked(&self.meter)
    }

    pub fn len(&self) -> usize {
        locked(&self.board).flights.len()
    }

    /// Run the jobs. What is not finished when the records are dropped is aborted.
    ///
    /// 429 where there is no place; if names must be unique because a client chose them, 409 for one in use.
    pub fn run(
        self: &Arc<Self>,
        client: Arc<Client>,
        jobs: Vec<Arc<Job>>,
        names: Vec<String>,
        unique: bool,
    ) -> Result<Records, Refusal> {
        let ids = self.admit(&client, names, unique)?;
        let trips = jobs.iter().map(|job| self.meter().begin(job.stream_interval > 0)).collect();
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut records = Records {
            flights: self.clone(),
            ids,
            trips,
            receiver,
            sender: None,
            left: jobs.len(),
            feeder: None,
            span: spans::current(),
        };
        let mut waiting = jobs.into_iter().enumerate().peekable();
        while let Some((place, job)) = waiting.peek() {
            let Ok(permit) = self.free.clone().try_acquire_owned() else { break };
            self.submit(records.ids[*place], *place, job, &sender, permit)?;
            waiting.next();
        }
        let waiting: Vec<(usize, Arc<Job>)> = waiting.collect();
        if waiting.is_empty() {
            records.sender = Some(sender);
        } else {
            let feeding = feed(self.clone(), records.ids.clone(), waiting, sender);
            records.feeder = Some(tokio::spawn(feeding).abort_handle());
        }
        Ok(records)
    }

    fn admit(&self, client: &Arc<Client>, names: Vec<String>, unique: bool) -> Result<Vec<u64>, Refusal> {
        let mut board = locked(&self.board);
        let running = board.flights.len();
        if running >= self.places {
            let text = message("queue_full", &[("running", &running), ("limit", &self.places)]);
            return Err(Refusal::new(429, text).code("queue_full"));
        }
        let used = |name: &&String| board.flights.values().any(|flight| flight.name == **name);
        if unique && let Some(name) = names.iter().find(used) {
            let text = message("rid_in_use", &[("value", &shown_text(name))]);
            return Err(Refusal::new(409, text).param("rid").code("rid_in_use"));
        }
        let first = board.next;
        board.next += names.len() as u64;
        for (id, name) in (first..).zip(names) {
            board.flights.insert(id, Flight { name, client: client.clone(), rid: None, aborted: false });
        }
        Ok((first..board.next).collect())
    }

    /// Unless it was aborted while it waited: then it ends as if it had been.
    fn submit(
        &self,
        id: u64,
        place: usize,
        job: &Job,
        sender: &mpsc::UnboundedSender<News>,
        permit: OwnedSemaphorePermit,
    ) -> Result<(), Refusal> {
        let mut board = locked(&self.board);
        let Some(flight) = board.flights.get_mut(&id) else { return Ok(()) };
        if flight.aborted {
            let _ = sender.send(Some((place, Box::new(aborted_before_its_turn()))));
            return Ok(());
        }
        let listener = Listener { place, sender: sender.clone(), _permit: Some(permit) };
        match flight.client.submit(|rid| job.frame(rid), listener) {
            Ok(rid) => {
                flight.rid = Some(rid);
                Ok(())
            }
            Err(CallError::Gone) => {
                let _ = sender.send(None);
                Ok(())
            }
            Err(CallError::Refused(why)) => Err(Refusal::internal(why)),
        }
    }

    /// End the request of this name, or its batch (rid_0, rid_1, ...); None: all. Unknown: nothing happens.
    pub fn abort(&self, rid: Option<&str>) {
        let mut board = locked(&self.board);
        for flight in board.flights.values_mut().filter(|flight| rid.is_none_or(|rid| is_of(&flight.name, rid))) {
            flight.aborted = true;
            if let Some(rid) = flight.rid {
                flight.client.abort(rid);
            }
        }
    }
}

fn is_of(name: &str, rid: &str) -> bool {
    let Some(rest) = name.strip_prefix(rid) else { return false };
    let number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    rest.is_empty() || rest.strip_prefix('_').is_some_and(number)
}

fn aborted_before_its_turn() -> Record {
    let done = Done {
        row: 0,
        kind: "abort".into(),
        completion_tokens: 0,
        matched_id: None,
        matched_text: None,
        message: "Aborted".into(),
        status: None,
        code: None,
        param: None,
    };
    Record { done: Some(done), ..Record::default() }
}

/// Submits what waits, in order, as places become free.
async fn feed(
    flights: Arc<Flights>,
    ids: Vec<u64>,
    waiting: Vec<(usize, Arc<Job>)>,
    sender: mpsc::UnboundedSender<News>,
) {
    for (place, job) in waiting {
        let Ok(permit) = flights.free.clone().acquire_owned().await else { return };
        if flights.submit(ids[place], place, &job, &sender, permit).is_err() {
            let _ = sender.send(None);
        }
    }
}

/// The records of a request's jobs. Order between jobs means nothing; within one it is kept.
pub struct Records {
    flights: Arc<Flights>,
    ids: Vec<u64>,
    trips: Vec<Trip>,
    receiver: mpsc::UnboundedReceiver<News>,
    /// Keeps the channel open where no feeder does.
    sender: Option<mpsc::UnboundedSender<News>>,
    left: usize,
    feeder: Option<AbortHandle>,
    /// Of the request, if it is traced.
    span: Option<opentelemetry::Context>,
}

impl Records {
    /// (the job's place in its request, record); None after each job's last.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<(usize, Record), Refusal>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.receiver.poll_recv(context).map(|news| match news {
            Some(Some((place, record))) => {
                let trip = &mut self.trips[place];
                trip.take(&record, &mut self.flights.meter());
                if let (Some(span), true) = (&self.span, trip.has_ended()) {
                    spans::sequence_ended(span, trip);
                }
                self.left -= usize::from(record.done.is_some());
                Some(Ok((place, *record)))
            }
            Some(None) | None => Some(Err(Refusal::engine_lost())),
        })
    }

    pub async fn next(&mut self) -> Option<Result<(usize, Record), Refusal>> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        if let Some(feeder) = &self.feeder {
            feeder.abort();
        }
        let mut board = locked(&self.flights.board);
        let ended: Vec<Flight> = self.ids.iter().filter_map(|id| board.flights.remove(id)).collect();
        drop(board);
        let mut meter = self.flights.meter();
        for trip in self.trips.iter_mut().filter(|trip| !trip.has_ended()) {
            trip.leave(&mut meter);
            if let Some(span) = &self.span {
                spans::sequence_ended(span, trip);
            }
        }
        drop(meter);
        for flight in ended {
            if let Some(rid) = flight.rid {
                flight.client.discard(rid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rid_means_itself_and_its_batch() {
        assert!(is_of("pair", "pair"));
        assert!(is_of("pair_12", "pair"));
        for other in ["pai", "pair_", "pair_x", "pair12", "a_pair"] {
            assert!(!is_of(other, "pair"), "{other}");
        }
    }
}
