//! `fencegate demo`: the zombie's story on real sockets, in one process, with nothing installed.
//!
//! The same story is played twice, past the gateway and through it, and what the sender received is counted. It claims
//! nothing that it has not measured.

mod client;
mod sender;
mod story;

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;

use thiserror::Error;
use tokio::sync::oneshot;

use crate::clock::Clock;
use crate::config::{self, ConfigError};
use crate::election::embedded::{Embedded, StateError};
use crate::serve::{self, Bound, ServeError};

/// Why there is no demo.
#[derive(Debug, Error)]
pub enum DemoError {
    /// Its own configuration is refused, by the environment perhaps.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The gateway does not serve.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// Its elections cannot be kept.
    #[error(transparent)]
    State(#[from] StateError),
    /// A socket or a file cannot be had.
    #[error("{0}")]
    System(#[from] std::io::Error),
    /// Something did not answer as it should.
    #[error("{0}")]
    Story(String),
}

/// Where everything is.
#[derive(Clone, Copy, Debug)]
struct Places {
    proxy: SocketAddr,
    admin: SocketAddr,
    elections: SocketAddr,
    sender: SocketAddr,
}

/// A folder for the state file, gone at the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const CONFIG: &str = r#"
[listen]
proxy = "127.0.0.1:0"
admin = "127.0.0.1:0"
elections = "127.0.0.1:0"

[coordination]
backend = "embedded"

[[route]]
path = "/wx/{account}/{*rest}"
account = "path:account"
upstream = "http://SENDER"
"#;

/// Plays the story, says the score, and unless `once` stays up until `stop` is ready. Whether the score is right;
/// stopped before it was said, it is wrong for `once`.
///
/// # Errors
/// What kept the story from being played.
pub async fn run(once: bool, stop: impl Future<Output = ()>) -> Result<bool, DemoError> {
    let (sender, recorded) = sender::start().await?;
    let config = config::parse("the demo", &CONFIG.replace("SENDER", &sender.to_string()), [])?;
    let bound = Bound::new(&config, 1)?;
    let address =
        |at: Option<SocketAddr>| at.ok_or_else(|| DemoError::Story("a listener has no address".into()));
    let places = Places {
        proxy: address(bound.proxy_address())?,
        admin: address(bound.admin_address())?,
        elections: address(bound.elections_address())?,
        sender,
    };
    let folder = std::env::temp_dir().join(format!("fencegate-demo-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let folder = Folder(folder);
    let embedded = Embedded::open(&folder.0.join("state"), Clock::default())?;
    let (end, ended) = oneshot::channel::<()>();
    let serving = serve::with_elections(config, embedded, bound, async { drop(ended.await) });
    let telling = story::Teller { colour: std::io::stdout().is_terminal() };
    let playing = async move {
        let _end = end;
        tokio::select! {
            () = stop => Ok(!once),
            played = story::play(&telling, places, &recorded, once) => played,
        }
    };
    let (served, played) = Box::pin(async { tokio::join!(serving, playing) }).await;
    let right = played?;
    served?;
    Ok(right)
}
