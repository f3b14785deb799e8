//! The HTTP frontend as Python starts it: in a process of its own, without the GIL from then on.

use std::net::TcpListener;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use zerokl_http::{Limits, Server};

/// A server for the engine of a run folder, on a listening socket that it takes over.
#[pyclass(frozen)]
struct HttpServer {
    server: Server,
    listener: Mutex<Option<TcpListener>>,
}

#[pymethods]
impl HttpServer {
    #[new]
    #[pyo3(signature = (run_folder, listener, *, stalled_s = 60.0, silent_s = 20.0, drain_s = 30.0))]
    fn new(run_folder: &str, listener: i32, stalled_s: f64, silent_s: f64, drain_s: f64) -> PyResult<Self> {
        let seconds =
            |value: f64| Duration::try_from_secs_f64(value).map_err(|error| PyValueError::new_err(error.to_string()));
        let limits = Limits { stalled: seconds(stalled_s)?, silent: seconds(silent_s)?, drain: seconds(drain_s)? };
        // SAFETY: the caller gives up this descriptor, as the stub says, so nobody else closes it.
        let listener = TcpListener::from(unsafe { OwnedFd::from_raw_fd(listener) });
        Ok(Self { server: Server::new(Path::new(run_folder), limits), listener: Mutex::new(Some(listener)) })
    }

    /// Serve until `stop`, or until a signal if `signals`. Once.
    #[pyo3(signature = (*, signals))]
    fn run(&self, py: Python<'_>, signals: bool) -> PyResult<()> {
        let listener = self.listener.lock().ok().and_then(|mut listener| listener.take());
        let listener = listener.ok_or_else(|| PyRuntimeError::new_err("this server has run already"))?;
        py.detach(|| self.server.run(listener, signals)).map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// From any thread: let the open requests end, then return from `run`.
    fn stop(&self) {
        self.server.stop();
    }
}

/// Why a request body is no JSON, and where.
#[pyfunction]
fn json_fault(py: Python<'_>, body: &[u8]) -> String {
    py.detach(|| zerokl_http::json_fault(body))
}

pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(json_fault, module)?)?;
    module.add_class::<HttpServer>()
}
