//! `gateway.toml` and the environment, made into a checked [`Config`].
//!
//! A file becomes a tree of values with places (`tree`), variables are laid over it (`env`), and one pass
//! (`gateway`, `route`) reads the keys. Everything that is wrong is reported together. Nothing that was written is
//! ever ignored: an unknown key, a value out of bounds and a feature that is not built are all refused.

mod address;
mod agent;
mod auth;
mod env;
mod error;
mod gateway;
mod identity;
mod model;
mod pointer;
mod refusal;
mod rewrite;
mod route;
mod secret;
mod section;
mod template;
mod tls;
mod tree;
mod upstream;
mod value;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;

pub use agent::model::{
    Agent, AgentAccounts, AgentConfig, AgentCoordination, AgentElection, AgentLimits, GatewayElections, Hooks,
};
pub use auth::is_local;
pub use error::ConfigError;
use error::{Place, Problem};
pub use identity::{Identity, Table, hash};
pub use model::{
    Auth, Barrier, Config, Coordination, Election, Freshness, Handover, JsonValue, Layout, Level, Limits,
    Listen, Log, LogFormat, Metrics, Mode, OnHistoryReset, Route, Secret, Shutdown, Source, ZkAuth,
    ZooKeeper,
};
pub use pointer::Pointer;
pub use refusal::{Filling, Form};
pub use rewrite::Rewrite;
pub use template::{Captures, Template, TemplateError};
pub use tls::{Tls, TlsListener};
pub use upstream::{Endpoint, Http, Keys, Protocol, Upstream};

/// Reads the file at `path`, lays `FENCEGATE__…` variables of `env` over it, and checks the result.
///
/// # Errors
/// [`ConfigError`] with every problem that was found.
pub fn load(path: &Path, env: impl IntoIterator<Item = (String, String)>) -> Result<Config, ConfigError> {
    let text = text(path)?;
    parse(&path.display().to_string(), &text, env)
}

fn text(path: &Path) -> Result<String, ConfigError> {
    let name = path.display().to_string();
    let fail = |text: &str, place: &Place, what: String| {
        Err(ConfigError::new(&name, text, vec![Problem::new(place, what)]))
    };
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) => {
            return fail("", &Place::Whole, format!("cannot be read: {error}; allowed: a readable file"));
        }
    };
    match std::str::from_utf8(&bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(error) => {
            let place = Place::At(error.valid_up_to());
            fail(&String::from_utf8_lossy(&bytes), &place, "not UTF-8; allowed: UTF-8 text".to_owned())
        }
    }
}

/// The same for `text`; `file_name` is what problems are reported with, and files that it names are relative to its folder.
///
/// # Errors
/// [`ConfigError`] with every problem that was found.
pub fn parse(
    file_name: &str,
    text: &str,
    env: impl IntoIterator<Item = (String, String)>,
) -> Result<Config, ConfigError> {
    let env: BTreeMap<String, String> = env.into_iter().collect();
    let mut problems = Vec::new();
    let folder = Path::new(file_name).parent().unwrap_or(Path::new(""));
    let config = check(text, &env, folder, &mut problems);
    match config {
        Some(config) if problems.is_empty() => Ok(config),
        _ => Err(ConfigError::new(file_name, text, problems)),
    }
}

fn check(
    text: &str,
    env: &BTreeMap<String, String>,
    folder: &Path,
    problems: &mut Vec<Problem>,
) -> Option<Config> {
    let root = tree(text, env, "one [[route]]", problems)?;
    gateway::read(&root, env, folder, problems)
}

/// Reads an agent's file, as [`load`] does a gateway's. `default_instance` is its instance id where the file gives none.
///
/// # Errors
/// [`ConfigError`] with every problem that was found.
pub fn load_agent(
    path: &Path,
    env: impl IntoIterator<Item = (String, String)>,
    default_instance: &str,
) -> Result<AgentConfig, ConfigError> {
    let text = text(path)?;
    parse_agent(&path.display().to_string(), &text, env, default_instance)
}

/// The same for `text`; `file_name` is what problems are reported with, and files that it names are relative to its folder.
///
/// # Errors
/// [`ConfigError`] with every problem that was found.
pub fn parse_agent(
    file_name: &str,
    text: &str,
    env: impl IntoIterator<Item = (String, String)>,
    default_instance: &str,
) -> Result<AgentConfig, ConfigError> {
    let env: BTreeMap<String, String> = env.into_iter().collect();
    let mut problems = Vec::new();
    let folder = Path::new(file_name).parent().unwrap_or(Path::new(""));
    let root = tree(text, &env, "[agent], who holds the elections and one [[route]]", &mut problems);
    let config = root.and_then(|root| agent::read(&root, &env, folder, default_instance, &mut problems));
    match config {
        Some(config) if problems.is_empty() => Ok(config),
        _ => Err(ConfigError::new(file_name, text, problems)),
    }
}

/// The file's tree with the variables laid over it.
fn tree(
    text: &str,
    env: &BTreeMap<String, String>,
    least: &str,
    problems: &mut Vec<Problem>,
) -> Option<tree::Node> {
    let mut root = match tree::parse(text) {
        Ok(root) => root,
        Err(problem) => {
            problems.push(problem);
            return None;
        }
    };
    // An empty file is a mistake even where the environment says everything: the wrong file, or half a write.
    if matches!(&root.value, tree::Value::Table(entries) if entries.is_empty()) {
        let text = format!("the file is empty; allowed: at least {least}");
        problems.push(Problem::new(&Place::Whole, text));
        return None;
    }
    env::apply(&mut root, env, problems);
    Some(root)
}

/// The process's environment, for [`load`]. A variable that is not UTF-8 is passed on with its bad bytes replaced, so
/// that it is refused where it is ours rather than ignored.
pub fn process_env() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
}
