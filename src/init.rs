//! `fencegate init`: writes a gateway.toml for a sender that is known.
//!
//! It never writes over an existing file, and writes nothing that `check` would refuse.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::config::{self, ConfigError};

macro_rules! presets {
    ($($name:literal)*) => {
        [$(($name, include_str!(concat!("../presets/", $name, ".toml")))),*]
    };
}

/// What is known of each sender: its routes.
static PRESETS: [(&str, &str); 13] = presets! {
    "gewe" "wechatpadpro" "wkteam" "juhe" "wcferry" "wxhelper" "wechaty-webhook" "waha" "evolution" "gowa" "wuzapi"
    "signal" "telegram"
};

/// What comes before them.
const HEAD: &str = r#"# fencegate in front of a sender, made by `fencegate init --preset {preset}`. `fencegate check` says whether this file is good,
# and `fencegate explain` what the gateway makes of a request. Every other key has a default that is meant to be good.

[listen]
proxy = "127.0.0.1:8080"    # where instances send, instead of to the sender
admin = "127.0.0.1:9090"    # health, metrics, the accounts

[zookeeper]
connect = "127.0.0.1:2181"

[election]
root = "/wx-accounts"       # instances register below it, in a folder for each account

"#;

/// The names of all presets.
pub fn names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|(name, _)| *name)
}

/// Why nothing was written.
#[derive(Debug, Error)]
pub enum InitError {
    /// There is no such preset.
    #[error("there is no preset {0:?}; allowed: {1}")]
    Preset(String, String),
    /// The upstream does not fit in.
    #[error("--upstream: no http://host:port, or more than that; what it would make:\n{0}")]
    Upstream(#[from] ConfigError),
    /// The file is there, or cannot be written.
    #[error("{0} cannot be written: {1}; nothing was changed")]
    File(PathBuf, io::Error),
}

impl InitError {
    /// Whether the command was used wrongly, rather than failed.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Preset(..) | Self::Upstream(_))
    }
}

/// The text of a configuration for a sender.
///
/// # Errors
/// There is no such preset, or the upstream is none.
pub fn text(preset: &str, upstream: &str) -> Result<String, InitError> {
    let Some((_, routes)) = PRESETS.iter().find(|(name, _)| *name == preset) else {
        return Err(InitError::Preset(preset.to_owned(), names().collect::<Vec<_>>().join(", ")));
    };
    // Between quotes of TOML: whatever would leave them is no upstream in any case.
    let upstream: String = upstream.chars().filter(|c| !c.is_control()).collect();
    let upstream = upstream.replace('\\', "\\\\").replace('"', "\\\"");
    let text = format!("{}{}", HEAD.replace("{preset}", preset), routes.replace("{upstream}", &upstream));
    config::parse("gateway.toml", &text, [])?;
    Ok(text)
}

/// Writes it to a new file.
///
/// # Errors
/// As [`text`]; or the file is there already, or cannot be written.
pub fn write(preset: &str, upstream: &str, file: &Path) -> Result<(), InitError> {
    let text = text(preset, upstream)?;
    let failed = |why| InitError::File(file.to_owned(), why);
    let mut new = OpenOptions::new().write(true).create_new(true).open(file).map_err(failed)?;
    new.write_all(text.as_bytes()).and_then(|()| new.sync_all()).map_err(failed)
}
