//! The log: one event is one line, on standard error.
//!
//! Values from outside are escaped where they are logged.

use tracing_subscriber::EnvFilter;

use crate::config::{Level, Log, LogFormat};

/// Begins to log. The crate's own level as configured; everything else only when it warns.
pub fn start(log: &Log) {
    let level = match log.level {
        Level::Error => "error",
        Level::Warn => "warn",
        Level::Info => "info",
        Level::Debug => "debug",
        Level::Trace => "trace",
    };
    // The ZooKeeper client's warnings repeat what the follower says in its own words. HTTP/2's are about single frames: whoever
    // sends many would fill the log.
    let filter = EnvFilter::new(format!("warn,zookeeper_client=error,h2=off,fencegate={level}"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false);
    // A second start in one process changes nothing.
    let _ = match log.format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
}
