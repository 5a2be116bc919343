//! The command line: arguments and exit codes. Exit 0 done, 1 failed, 2 wrong usage or configuration.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use fencegate::ask::AskError;
use fencegate::clock::wall_ms;
use fencegate::config::{self, Config, Listen};
use fencegate::key::{self, KeyHash};
use fencegate::serve::{self, Bound};
use fencegate::status::{self, Selection};
use fencegate::{agent, ask, demo, descriptors, explain, init, logging, quick};

/// A request makes dozens of small allocations, which cost fewer instructions here than with the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// An HTTP gateway that lets through only the sends of an account's current holder.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// A request that is explained may have so many bytes.
const LONGEST_TEXT: u64 = 256 << 20;

#[derive(Subcommand)]
enum Command {
    /// Serve as gateway.toml says, until SIGTERM or SIGINT.
    Serve {
        /// The configuration file; gateway.toml unless there is an --upstream.
        #[arg(long)]
        config: Option<PathBuf>,
        /// Without a file: elections of the gateway's own, and /wx/{account}/… to this sender, http://host:port.
        #[arg(long, conflicts_with = "config")]
        upstream: Option<String>,
    },
    /// Show what the gateway is for: a frozen instance wakes up and sends. Needs nothing; stays up until Ctrl-C.
    Demo {
        /// End after the score: exit 0 if it is right.
        #[arg(long)]
        once: bool,
    },
    /// Check a configuration file without starting anything.
    Check {
        /// The configuration file.
        #[arg(long, default_value = "gateway.toml")]
        config: PathBuf,
    },
    /// Take part in elections for bots, and forward what they send, until SIGTERM or SIGINT.
    Agent {
        /// The configuration file.
        #[arg(long, default_value = "agent.toml")]
        config: PathBuf,
    },
    /// Accept ZooKeeper's history after it was wiped or restored on purpose. Where the admin listener has keys, one is taken
    /// from the environment variable FENCEGATE_KEY.
    AcceptHistory {
        /// The configuration file of the running gateway: where its admin listener is.
        #[arg(long, default_value = "gateway.toml")]
        config: PathBuf,
    },
    /// Write a configuration for a sender that is known; never over an existing file.
    Init {
        /// Which sender.
        #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(init::names()))]
        preset: String,
        /// Where it listens: http://host:port.
        #[arg(long)]
        upstream: String,
        /// The file to write.
        #[arg(long, default_value = "gateway.toml")]
        output: PathBuf,
    },
    /// Say what the gateway makes of an HTTP/1 request on standard input: route, account, token, verdict and why. The verdict
    /// is by the view of the running gateway, whose admin listener is asked; keys of callers are not looked at. Where the admin
    /// listener has keys, one is taken from the environment variable FENCEGATE_KEY.
    Explain {
        /// The configuration file.
        #[arg(long, default_value = "gateway.toml")]
        config: PathBuf,
    },
    /// Show the accounts of a running gateway as a table. Where the admin listener has keys, one is taken from the environment
    /// variable FENCEGATE_KEY.
    Status {
        #[command(flatten)]
        at: At,
        /// Only those whose names begin so.
        #[arg(long, default_value = "")]
        prefix: String,
        /// Only those in this state: held, vacant, invalid or unknown.
        #[arg(long, default_value = "")]
        state: String,
    },
    /// Exit 0 if a running gateway answers, 1 if it does not: for containers.
    Healthcheck {
        #[command(flatten)]
        at: At,
        /// Ask whether it is ready, not only whether it runs.
        #[arg(long)]
        ready: bool,
    },
    /// Make keys.
    Key {
        #[command(subcommand)]
        command: KeyCommand,
    },
}

/// Where a running gateway's admin listener is.
#[derive(Args)]
struct At {
    /// The configuration file of the running gateway.
    #[arg(long, default_value = "gateway.toml")]
    config: PathBuf,
    /// Its admin listener instead, where that has no TLS: http://host:port.
    #[arg(long)]
    url: Option<String>,
}

#[derive(Subcommand)]
enum KeyCommand {
    /// Make a key, and print it with the lines that let it in.
    New {
        /// What operators call it.
        #[arg(long, default_value = "new")]
        name: String,
    },
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Serve { config: None, upstream: Some(upstream) } => serve_quickly(&upstream),
        Command::Serve { config: None, .. } if !Path::new("gateway.toml").exists() => {
            eprintln!(
                "fencegate: there is no gateway.toml here; name one with --config, write one with `fencegate init`, or start \
                 without: fencegate serve --upstream http://127.0.0.1:9000"
            );
            ExitCode::from(2)
        }
        Command::Serve { config, .. } => with(&config.unwrap_or_else(|| "gateway.toml".into()), serve),
        Command::Demo { once } => demo(once),
        Command::Check { config: file } => with(&file, |_| {
            println!("{}: good", file.display());
            ExitCode::SUCCESS
        }),
        Command::Agent { config } => agent(&config),
        Command::AcceptHistory { config } => with(&config, accept_history),
        Command::Init { preset, upstream, output } => make(&preset, &upstream, &output),
        Command::Explain { config } => with(&config, explain),
        Command::Status { at, prefix, state } => {
            let selection = Selection { state, prefix };
            asked(&at, async |listen, key| status::status(listen, key, &selection, wall_ms()).await)
        }
        Command::Healthcheck { at, ready } => {
            asked(&at, async |listen, _| status::health(listen, ready).await.map(|said| said + "\n"))
        }
        Command::Key { command: KeyCommand::New { name } } => new_key(&name),
    }
}

fn with(file: &Path, run: impl FnOnce(Config) -> ExitCode) -> ExitCode {
    match config::load(file, config::process_env()) {
        Ok(config) => run(config),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// Asks a running gateway, and prints what it said.
fn asked(at: &At, ask: impl AsyncFnOnce(&Listen, Option<&str>) -> Result<String, AskError>) -> ExitCode {
    let run = |listen: &Listen| {
        let key = std::env::var("FENCEGATE_KEY").ok();
        match control_plane() {
            Ok(runtime) => match runtime.block_on(ask(listen, key.as_deref())) {
                Ok(said) => tell(&said),
                Err(error) => fail(&error),
            },
            Err(error) => fail(&error),
        }
    };
    match &at.url {
        None => with(&at.config, |config| run(&config.listen)),
        Some(url) => match ask::admin_at(url) {
            Ok(listen) => run(&listen),
            Err(why) => {
                eprintln!("fencegate: --url {url}: {why}");
                ExitCode::from(2)
            }
        },
    }
}

/// Prints, and ends quietly where nobody reads on, as in `fencegate status | head`.
fn tell(said: &str) -> ExitCode {
    match std::io::stdout().write_all(said.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => fail(&error),
        Ok(()) | Err(_) => ExitCode::SUCCESS,
    }
}

fn fail(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("fencegate: {error}");
    ExitCode::FAILURE
}

fn control_plane() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Without a file.
fn serve_quickly(upstream: &str) -> ExitCode {
    if Path::new("gateway.toml").exists() {
        eprintln!(
            "fencegate: --upstream is for a start without a file, and there is a gateway.toml; set `upstream` in it"
        );
        return ExitCode::from(2);
    }
    match quick::config(upstream, config::process_env()) {
        Ok(config) => serve_telling(config, |bound| {
            if let (Some(proxy), Some(elections)) = (bound.proxy_address(), bound.elections_address()) {
                let (by_hand, agent) = (quick::lines(proxy, elections), quick::agent_lines(proxy, elections));
                let _ = tell(&format!(
                    "Try it, in another shell:\n\n{by_hand}\nOr with an agent, which stands and sends for a bot:\n\n{agent}\n"
                ));
            }
        }),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn demo(once: bool) -> ExitCode {
    let runtime = match control_plane() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error),
    };
    let played = runtime.block_on(demo::run(once, asked_to_stop()));
    runtime.shutdown_background();
    match played {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => fail(&error),
    }
}

fn serve(config: Config) -> ExitCode {
    serve_telling(config, |_| {})
}

fn serve_telling(mut config: Config, tell: impl FnOnce(&Bound)) -> ExitCode {
    logging::start(&config.log);
    descriptors::fit(&mut config);
    let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let bound = match Bound::new(&config, workers) {
        Ok(bound) => bound,
        Err(error) => return fail(&error),
    };
    let runtime = match control_plane() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error),
    };
    tell(&bound);
    let served = runtime.block_on(serve::serve(config, bound, asked_to_stop()));
    // What is left to the runtime, such as a link that is being made, is not waited for.
    runtime.shutdown_background();
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn agent(file: &Path) -> ExitCode {
    let mut config = match config::load_agent(file, config::process_env(), &default_instance()) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    logging::start(&config.log);
    descriptors::fit_agent(&mut config.limits);
    let bound = match agent::Bound::new(&config) {
        Ok(bound) => bound,
        Err(error) => return fail(&error),
    };
    // Elections and bots on two threads: neither has to wait long for the other.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error),
    };
    let served = runtime.block_on(serve::agent(config, bound, asked_to_stop()));
    runtime.shutdown_background();
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

/// The host's name and the process's id.
fn default_instance() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}-{}", std::process::id())
}

/// Until SIGTERM or SIGINT.
async fn asked_to_stop() {
    use tokio::signal::unix::{SignalKind, signal};
    let one = |kind| async move {
        match signal(kind) {
            Ok(mut signal) => drop(signal.recv().await),
            Err(error) => {
                eprintln!("fencegate: cannot listen for a signal: {error}");
                std::future::pending::<()>().await;
            }
        }
    };
    tokio::select! {
        () = one(SignalKind::terminate()) => {}
        () = one(SignalKind::interrupt()) => {}
    }
}

fn make(preset: &str, upstream: &str, output: &Path) -> ExitCode {
    match init::write(preset, upstream, output) {
        Ok(()) => {
            println!("{}: written; see what it says, and begin with: fencegate serve", output.display());
            ExitCode::SUCCESS
        }
        Err(error) if error.is_usage() => {
            eprintln!("fencegate: {error}");
            ExitCode::from(2)
        }
        Err(error) => fail(&error),
    }
}

fn explain(config: Config) -> ExitCode {
    let mut text = Vec::new();
    if let Err(error) = std::io::stdin().lock().take(LONGEST_TEXT).read_to_end(&mut text) {
        return fail(&error);
    }
    match control_plane() {
        Ok(runtime) => {
            let key = std::env::var("FENCEGATE_KEY").ok();
            print!("{}", runtime.block_on(explain::explain(&config, &text, key.as_deref())));
            ExitCode::SUCCESS
        }
        Err(error) => fail(&error),
    }
}

fn accept_history(config: Config) -> ExitCode {
    let runtime = match control_plane() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error),
    };
    let key = std::env::var("FENCEGATE_KEY").ok();
    match runtime.block_on(ask::accept_history(&config.listen, key.as_deref())) {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(error) => fail(&error),
    }
}

fn new_key(name: &str) -> ExitCode {
    let key = match key::generate() {
        Ok(key) => key,
        Err(error) => return fail(&error),
    };
    let hash = KeyHash::of(key.as_bytes());
    println!("{key}");
    println!();
    println!(
        "# The key is shown only here; callers send it as X-Fencing-Key. In gateway.toml, in a list of [auth]: in `keys`"
    );
    println!(
        "# for the accounts that it may send for (* stands for any characters), or in `admin_keys`, without accounts:"
    );
    println!("# {{ name = \"{name}\", sha256 = \"{hash}\", accounts = [\"*\"] }}");
    ExitCode::SUCCESS
}
