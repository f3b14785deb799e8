//! `zerokl-http RUN_FOLDER ADDRESS:PORT`: the frontend of an engine that serves in RUN_FOLDER.

use std::net::TcpListener;
use std::path::Path;
use std::process::ExitCode;

use zerokl_http::{Limits, Server, StartError};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, address] = &arguments[..] else {
        eprintln!("usage: zerokl-http RUN_FOLDER ADDRESS:PORT");
        return ExitCode::from(2);
    };
    let listening =
        TcpListener::bind(address).map_err(|error| StartError(format!("can't listen on {address}: {error}")));
    match listening.and_then(|listener| Server::new(Path::new(folder), Limits::default()).run(listener, true)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("zerokl-http: {error}");
            ExitCode::FAILURE
        }
    }
}
