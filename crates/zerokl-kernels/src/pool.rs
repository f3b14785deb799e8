//! A persistent thread pool: `parallel_for` spawns nothing and allocates nothing once its threads exist.
//!
//! ```text
//! caller   close ▸ write job ▸ open ▸ claim, run, claim, run ... ▸ wait until finished == count
//! worker   ............ spin, then sleep ▸ claim, run ................. ▸ spin, then sleep
//! ```
//!
//! Indices wait in lanes: all in one, or one lane for each thread, of neighbouring indices, so that a thread reads on where
//! it was and, job after job, the same weights; who has emptied his own lane helps with the others.
//!
//! An index is claimed by advancing its lane's 64-bit ticket (job number, next index), so each runs exactly once, a late
//! worker can't touch a later job, and a worker that never comes (after a fork, say) is not waited for. Who runs which
//! index is free: kernels give every task its own output and its own order inside, so no bit depends on it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::arch::strict_floats;

/// How long an idle worker keeps looking before it sleeps: longer than the gap between two operations of one step
/// (tens of microseconds of Python), far shorter than a step. Waking a sleeper costs about 50 us in a virtual machine.
const SPIN: Duration = Duration::from_micros(150);

/// Index part of a ticket that no count reaches: nothing can be claimed.
const CLOSED: u64 = u32::MAX as u64;

/// Lanes there are: threads beyond them only help.
const MOST_LANES: usize = 64;

/// Calls `task(i)` once for each `i < count`, on at most `threads` threads, and returns when all are done. Lower indices
/// start earlier.
///
/// The caller works too. Called from inside a task, or while another thread uses the pool, it runs all tasks itself.
/// A panic in a task is raised again here, after the others have finished, or at once if it runs all itself.
pub fn parallel_for(threads: usize, count: usize, task: impl Fn(usize) + Sync) {
    start(threads, count, false, task);
}

/// The same, neighbouring indices on one thread, as long as no other has nothing to do.
pub fn parallel_ranges(threads: usize, count: usize, task: impl Fn(usize) + Sync) {
    start(threads, count, true, task);
}

fn start(threads: usize, count: usize, in_ranges: bool, task: impl Fn(usize) + Sync) {
    assert!((count as u64) < CLOSED, "too many tasks");
    if threads > 1
        && count > 1
        && let Ok(mut workers) = WORKERS.try_lock()
    {
        let wanted = (threads - 1).min(count - 1);
        while workers.len() < wanted
            && let Ok(worker) = Worker::spawn(workers.len() + 1)
        {
            workers.push(worker); // a system without room for more threads is slower, not wrong
        }
        let helpers = wanted.min(workers.len());
        let lanes = if in_ranges { MOST_LANES.min(helpers + 1) } else { 1 };
        let panicked = run_shared(&workers, helpers, lanes, count, &task);
        drop(workers);
        assert!(!panicked, "a kernel task panicked (its message is above)");
    } else {
        (0..count).for_each(task);
    }
}

/// Says that there will be work for so many threads very soon: who sleeps wakes meanwhile.
pub fn wake(threads: usize) {
    if let Ok(workers) = WORKERS.try_lock() {
        workers.iter().take(threads.saturating_sub(1)).for_each(Worker::wake);
    }
}

/// Held while a job runs, so there is one job at a time.
static WORKERS: Mutex<Vec<Worker>> = Mutex::new(Vec::new());

static JOB: Job = Job {
    number: AtomicU64::new(0),
    count: AtomicUsize::new(0),
    lanes: AtomicUsize::new(1),
    helpers: AtomicUsize::new(0),
    task: AtomicPtr::new(std::ptr::null_mut()),
    finished: AtomicUsize::new(0),
    panicked: AtomicBool::new(false),
};

static LANES: [Lane; MOST_LANES] = [const { Lane(AtomicU64::new(CLOSED)) }; MOST_LANES];

struct Job {
    /// Changes when a job has opened: what idle workers look at.
    number: AtomicU64,
    count: AtomicUsize,
    lanes: AtomicUsize,
    /// Workers up to this number may take part.
    helpers: AtomicUsize,
    task: AtomicPtr<Task<'static>>,
    finished: AtomicUsize,
    panicked: AtomicBool,
}

/// Job number in the high half, next unclaimed index in the low half. Alone in its cache lines.
#[repr(align(128))]
struct Lane(AtomicU64);

type Task<'a> = &'a (dyn Fn(usize) + Sync);

/// Where the indices of a lane start; those of the one before end there.
fn lane_start(lane: usize, lanes: usize, count: usize) -> usize {
    lane * count / lanes
}

/// Runs one job and says whether a task of it panicked.
fn run_shared(workers: &[Worker], helpers: usize, lanes: usize, count: usize, mut task: Task<'_>) -> bool {
    let number = JOB.number.load(Relaxed).wrapping_add(1) & u64::from(u32::MAX);
    // Close first, and all: whoever reads a new count with an old ticket must fail to claim with it.
    LANES.iter().take(workers.len() + 1).for_each(|lane| lane.0.store(number << 32 | CLOSED, Release));
    JOB.count.store(count, Release);
    JOB.lanes.store(lanes, Release);
    JOB.helpers.store(helpers, Release);
    JOB.finished.store(0, Release);
    JOB.panicked.store(false, Release);
    JOB.task.store((&raw mut task).cast(), Release);
    for (lane, ticket) in LANES[..lanes].iter().enumerate() {
        ticket.0.store(number << 32 | lane_start(lane, lanes, count) as u64, Release);
    }
    JOB.number.store(number, SeqCst);
    workers[..helpers].iter().for_each(Worker::wake);

    while help(0) {}
    let mut rounds = 0_u32;
    while JOB.finished.load(Acquire) < count {
        rounds += 1;
        if rounds < 10_000 { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
    JOB.panicked.load(Acquire)
}

/// Runs what is left of the current job, own lane first. Thread 0 is the caller. False: there was nothing.
fn help(thread: usize) -> bool {
    let lanes = JOB.lanes.load(Acquire);
    let mut has_run = false;
    for step in 0..lanes {
        while claim_and_run(thread, (thread + step) % lanes) {
            has_run = true;
        }
    }
    has_run
}

/// Runs the next index of a lane of the current job, if there is one and this thread takes part.
fn claim_and_run(thread: usize, lane: usize) -> bool {
    let ticket = LANES[lane].0.load(Acquire);
    let index = (ticket & CLOSED) as usize;
    let (count, lanes) = (JOB.count.load(Acquire), JOB.lanes.load(Acquire));
    let is_there = lane < lanes && index < lane_start(lane + 1, lanes, count);
    if !is_there || thread > JOB.helpers.load(Acquire) {
        return false;
    }
    let task = JOB.task.load(Acquire);
    if LANES[lane].0.compare_exchange(ticket, ticket + 1, AcqRel, Relaxed).is_err() {
        return true; // somebody else took it; look again
    }
    // SAFETY: the claim succeeded, so `task` was read while this job was open, and `run_shared` of this job does not
    // return before `finished` counts this index: the closure and everything it borrows are alive.
    let task: Task<'_> = unsafe { *task };
    if catch_unwind(AssertUnwindSafe(|| task(index))).is_err() {
        JOB.panicked.store(true, Release);
    }
    JOB.finished.fetch_add(1, AcqRel);
    true
}

struct Worker {
    thread: Thread,
    asleep: Arc<AtomicBool>,
}

impl Worker {
    fn spawn(number: usize) -> std::io::Result<Self> {
        let asleep = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&asleep);
        let handle = std::thread::Builder::new()
            .name(format!("zerokl-{number}"))
            .spawn(move || strict_floats(|| work_forever(number, &flag)))?;
        Ok(Worker { thread: handle.thread().clone(), asleep })
    }

    /// The store of the job's number before and the load here pair with the worker's store of `asleep` and load of the
    /// number: in a single order, one of the two sees the other.
    fn wake(&self) {
        if self.asleep.load(SeqCst) {
            self.thread.unpark();
        }
    }
}

fn work_forever(number: usize, asleep: &AtomicBool) {
    loop {
        let seen = JOB.number.load(SeqCst);
        if help(number) || changes_soon(seen) {
            continue;
        }
        asleep.store(true, SeqCst);
        if JOB.number.load(SeqCst) == seen {
            std::thread::park();
        }
        asleep.store(false, SeqCst);
    }
}

/// Looks for a new job for a while.
fn changes_soon(seen: u64) -> bool {
    let start = Instant::now();
    while start.elapsed() < SPIN {
        for _ in 0..64 {
            if JOB.number.load(Relaxed) != seen {
                return true;
            }
            std::hint::spin_loop();
        }
    }
    false
}

#[cfg(test)]
mod tests;
