//! A persistent thread pool: `parallel_for` spawns nothing and allocates nothing once its threads exist.
//!
//! ```text
//! caller   close ▸ write job ▸ open ▸ claim, run, claim, run ... ▸ wait until finished == count
//! worker   ............ spin, then sleep ▸ claim, run ................. ▸ spin, then sleep
//! ```
//!
//! A task is claimed by advancing one 64-bit ticket (job number, next index), so each index runs exactly once, a late
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

/// Calls `task(i)` once for each `i < count`, on at most `threads` threads, and returns when all are done.
///
/// The caller works too. Called from inside a task, or while another thread uses the pool, it runs all tasks itself.
/// A panic in a task is raised again here, after the others have finished.
pub fn parallel_for(threads: usize, count: usize, task: impl Fn(usize) + Sync) {
    assert!((count as u64) < CLOSED, "too many tasks");
    if threads > 1
        && count > 1
        && let Ok(mut workers) = WORKERS.try_lock()
    {
        let wanted = (threads - 1).min(count - 1);
        while workers.len() < wanted
            && let Ok(worker) = Worker::spawn(workers.len())
        {
            workers.push(worker); // a system without room for more threads is slower, not wrong
        }
        let helpers = wanted.min(workers.len());
        let panicked = run_shared(&workers[..helpers], count, &task);
        drop(workers);
        assert!(!panicked, "a kernel task panicked (its message is above)");
    } else {
        (0..count).for_each(task);
    }
}

/// Held while a job runs, so there is one job at a time.
static WORKERS: Mutex<Vec<Worker>> = Mutex::new(Vec::new());

static JOB: Job = Job {
    ticket: AtomicU64::new(CLOSED),
    count: AtomicU64::new(0),
    helpers: AtomicUsize::new(0),
    task: AtomicPtr::new(std::ptr::null_mut()),
    finished: AtomicU64::new(0),
    panicked: AtomicBool::new(false),
};

struct Job {
    /// Job number in the high half, next unclaimed index in the low half.
    ticket: AtomicU64,
    count: AtomicU64,
    /// Workers of a lower number than this may take part.
    helpers: AtomicUsize,
    task: AtomicPtr<Task<'static>>,
    finished: AtomicU64,
    panicked: AtomicBool,
}

type Task<'a> = &'a (dyn Fn(usize) + Sync);

/// Runs one job and says whether a task of it panicked.
fn run_shared(workers: &[Worker], count: usize, mut task: Task<'_>) -> bool {
    let job_number = (JOB.ticket.load(Relaxed) >> 32).wrapping_add(1) << 32;
    // Close first: whoever reads a new count with an old ticket must fail to claim with it.
    JOB.ticket.store(job_number | CLOSED, SeqCst);
    JOB.count.store(count as u64, Release);
    JOB.helpers.store(workers.len(), Release);
    JOB.finished.store(0, Release);
    JOB.panicked.store(false, Release);
    JOB.task.store((&raw mut task).cast(), Release);
    JOB.ticket.store(job_number, SeqCst);
    workers.iter().for_each(Worker::wake);

    while claim_and_run(None) {}
    let mut rounds = 0_u32;
    while JOB.finished.load(Acquire) < count as u64 {
        rounds += 1;
        if rounds < 10_000 { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
    JOB.panicked.load(Acquire)
}

/// Runs the next index of the current job, if there is one and this worker (None: the caller) takes part.
fn claim_and_run(worker: Option<usize>) -> bool {
    let ticket = JOB.ticket.load(SeqCst);
    let index = ticket & CLOSED;
    if index >= JOB.count.load(Acquire) || worker.is_some_and(|number| number >= JOB.helpers.load(Acquire)) {
        return false;
    }
    let task = JOB.task.load(Acquire);
    if JOB.ticket.compare_exchange(ticket, ticket + 1, SeqCst, Relaxed).is_err() {
        return true; // somebody else took it; look again
    }
    // SAFETY: the claim succeeded, so `task` was read while this job was open, and `run_shared` of this job does not
    // return before `finished` counts this index: the closure and everything it borrows are alive.
    let task: Task<'_> = unsafe { *task };
    if catch_unwind(AssertUnwindSafe(|| task(index as usize))).is_err() {
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

    /// The store of the ticket before and the load here pair with the worker's store of `asleep` and load of the
    /// ticket: in a single order, one of the two sees the other.
    fn wake(&self) {
        if self.asleep.load(SeqCst) {
            self.thread.unpark();
        }
    }
}

fn work_forever(number: usize, asleep: &AtomicBool) {
    loop {
        let seen = JOB.ticket.load(SeqCst);
        if claim_and_run(Some(number)) || changes_soon(seen) {
            continue;
        }
        asleep.store(true, SeqCst);
        if JOB.ticket.load(SeqCst) == seen {
            std::thread::park();
        }
        asleep.store(false, SeqCst);
    }
}

/// Looks for a new ticket for a while.
fn changes_soon(seen: u64) -> bool {
    let start = Instant::now();
    while start.elapsed() < SPIN {
        for _ in 0..64 {
            if JOB.ticket.load(Relaxed) != seen {
                return true;
            }
            std::hint::spin_loop();
        }
    }
    false
}

#[cfg(test)]
mod tests;
