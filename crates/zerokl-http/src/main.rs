//! `zerokl-http RUN_FOLDER ADDRESS:PORT`: the frontend of an engine that serves in RUN_FOLDER.

use std::net::TcpListener;
use std::path::Path;
use std::process::ExitCode;

use zerokl_http::{Allocator, Limits, Server, StartError};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, address] = &arguments[..] else {
        eprintln!("usage: zerokl-http RUN_FOLDER ADDRESS:PORT");
        return ExitCode::from(2);
    };
    match serve(Path::new(folder), address) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("zerokl-http: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Says where, for the port may be 0.
fn serve(folder: &Path, address: &str) -> Result<(), StartError> {
    let failed = |error: std::io::Error| StartError(format!("can't listen on {address}: {error}"));
    let listener = TcpListener::bind(address).map_err(failed)?;
    eprintln!("zerokl-http: http://{}", listener.local_addr().map_err(failed)?);
    Server::new(folder, Limits::default()).run(listener, true)
}
