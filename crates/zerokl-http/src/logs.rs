//! One line per event on standard error, in the form of the other processes. Never a prompt.

use std::fmt;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// From the options' log level on; a second call changes nothing.
pub fn set_up(level: &str) {
    let level = match level {
        "debug" => Level::DEBUG,
        "warning" => Level::WARN,
        "error" => Level::ERROR,
        _ => Level::INFO,
    };
    let subscriber = tracing_subscriber::fmt().event_format(Line).with_max_level(level).with_writer(std::io::stderr);
    let _ = subscriber.try_init();
}

struct Line;

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let level = match *event.metadata().level() {
            Level::ERROR => "ERROR",
            Level::WARN => "WARNING",
            Level::INFO => "INFO",
            _ => "DEBUG",
        };
        write!(out, "{} {level} frontend: ", chrono::Local::now().format("%H:%M:%S"))?;
        context.field_format().format_fields(out.by_ref(), event)?;
        writeln!(out)
    }
}
