//! The process around the app: threads, connections, and a drain at the end.

use std::fmt;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::app::App;
use crate::clock::Clock;
use crate::config::Config;
use crate::engine::Engine;
use crate::exchange::{self, Exchange};
use crate::logs;
use crate::service::Service;
use crate::socket::ClientSocket;
use crate::spans::Tracing;
use crate::tokenizer::Tokenizer;

const ENGINE_SOCKET: &str = "engine.sock";
/// Also how long a client may take for a request's head.
const KEEP_ALIVE: Duration = Duration::from_secs(75);
/// How long open requests may go on after a signal.
const DRAIN: Duration = Duration::from_secs(30);
/// The library wakes its thread up, by a system call, for each timer that is set while no earlier one is: one always is.
const TICK: Duration = Duration::from_secs(10);
/// Of one connection, for what is read ahead and for what waits to be written.
const BUFFER_BYTES: usize = 64 * 1024;

/// What tests shorten.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// A client that takes no byte for so long is given up.
    pub stalled: Duration,
    /// An engine that said nothing for so long is not healthy.
    pub silent: Duration,
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { stalled: Duration::from_secs(60), silent: Duration::from_secs(20), drain: DRAIN }
    }
}

/// Why the server can't begin.
#[derive(Debug)]
pub struct StartError(pub String);

impl fmt::Display for StartError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for StartError {}

/// A server that is ready to run. `stop` ends it from another thread.
pub struct Server {
    folder: PathBuf,
    limits: Limits,
    stop: watch::Sender<bool>,
}

impl Server {
    pub fn new(run_folder: &Path, limits: Limits) -> Self {
        Self { folder: run_folder.to_owned(), limits, stop: watch::Sender::new(false) }
    }

    /// Begin to drain.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Answer on the listener until `stop`, or until SIGTERM or SIGINT if `signals` are this server's to take.
    pub fn run(&self, listener: TcpListener, signals: bool) -> Result<(), StartError> {
        let began = Instant::now();
        let failed = |error: std::io::Error| StartError(error.to_string());
        let config = Config::load(&self.folder).map_err(StartError)?;
        logs::set_up(&config.log_level);
        let runtime = runtime(config.frontend_threads.unwrap_or(1)).map_err(failed)?;
        let app = Arc::new(make_app(config, &self.folder, self.limits, runtime.handle())?);
        listener.set_nonblocking(true).map_err(failed)?;
        let served = runtime.block_on(self.serve(app, listener, signals, began));
        runtime.shutdown_timeout(Duration::from_secs(1)); // a template may be rendering
        served.map_err(failed)
    }

    async fn serve(&self, app: Arc<App>, listener: TcpListener, signals: bool, began: Instant) -> std::io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let service = app.service.clone();
        let keeper = tokio::spawn(async move {
            let connected = || service.startup_s.set(service.clock.elapsed(began)).unwrap_or_default();
            service.engine.keep_connected(connected).await;
        });
        let graceful = GracefulShutdown::new();
        let mut ending = std::pin::pin!(self.ending(signals)?);
        let mut tick = tokio::time::interval(TICK);
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => self.take(&app, stream, &graceful),
                    Err(error) => {
                        tracing::warn!("a connection can't be taken: {error}");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                },
                _ = tick.tick() => {}
                () = &mut ending => break,
            }
        }
        app.service.engine.draining.store(true, Ordering::Relaxed);
        drop(listener);
        if tokio::time::timeout(self.limits.drain, graceful.shutdown()).await.is_err() {
            tracing::warn!("requests that are still open are given up");
        }
        keeper.abort();
        let service = app.service.clone();
        let closing = move || service.tracing.iter().for_each(Tracing::close);
        let _ = tokio::task::spawn_blocking(closing).await;
        Ok(())
    }

    /// One connection, on a task of its own.
    fn take(&self, app: &Arc<App>, stream: tokio::net::TcpStream, graceful: &GracefulShutdown) {
        let socket = TokioIo::new(ClientSocket::new(stream, self.limits.stalled));
        let app = app.clone();
        let limits = exchange::Limits { body_bytes: app.service.config.max_body_bytes, silence: self.limits.stalled };
        let answering = service_fn(move |request| {
            let app = app.clone();
            async move {
                let mut exchange = Exchange::new(request, limits);
                let answer = app.exchange(&mut exchange).await;
                if exchange.stalled { Err("the client sent nothing for long") } else { Ok(answer) }
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(KEEP_ALIVE)
            .auto_date_header(false)
            .max_buf_size(BUFFER_BYTES)
            .serve_connection(socket, answering);
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!("a connection ended: {error}");
            }
        });
    }

    /// Returns when it is time to end.
    fn ending(&self, signals: bool) -> std::io::Result<impl Future<Output = ()>> {
        let mut stop = self.stop.subscribe();
        let mut taken = match signals {
            true => Some((signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)),
            false => None,
        };
        Ok(async move {
            let stopped = async { drop(stop.wait_for(|stop| *stop).await) };
            match &mut taken {
                None => stopped.await,
                Some((terminate, interrupt)) => tokio::select! {
                    () = stopped => {}
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                },
            }
        })
    }
}

/// One thread answers more requests than an engine can take, and none of them waits for another thread to wake up: with
/// two threads a request took 24 us of CPU, not 17. What takes long (long texts and conversations) has threads of its own.
fn runtime(threads: usize) -> std::io::Result<tokio::runtime::Runtime> {
    let mut builder = match threads {
        0 | 1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    if threads > 1 {
        builder.worker_threads(threads);
    }
    builder.thread_name("frontend").enable_all().build()
}

fn make_app(config: Config, folder: &Path, limits: Limits, runtime: &Handle) -> Result<App, StartError> {
    let tokenizer = Tokenizer::load(folder, config.model_name()).map_err(StartError)?;
    let clock = Clock::new(config.test_clock);
    let tracing = Tracing::of(&config, runtime.clone()).map_err(StartError)?;
    let places = config.max_running_requests + config.max_queued_requests;
    let engine = Engine::new(folder.join(ENGINE_SOCKET), places, config.watchdog_timeout, limits.silent);
    let started_at = clock.now();
    let startup_s = OnceLock::new();
    let service = Service { config, engine, tokenizer: Arc::new(tokenizer), clock, tracing, started_at, startup_s };
    Ok(App::new(Arc::new(service)))
}
