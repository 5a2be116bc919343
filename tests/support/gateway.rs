//! The built binary as a gateway: a configuration, a process, and calls to it.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::http1::{Headers, Response, call, try_call};
use super::metrics::Metrics;
use super::place::{Folder, free_port, loopback};
use super::process::Process;
use super::wait::{PATIENCE, wait_for, wait_until};

/// The binary that Cargo built for these tests.
pub const BINARY: &str = env!("CARGO_BIN_EXE_fencegate");

/// Runs the binary with arguments to its end.
#[track_caller]
pub fn fencegate(arguments: &[&str]) -> Output {
    Command::new(BINARY).args(arguments).output().expect("the binary runs")
}

/// What gateway to start.
#[derive(Clone, Debug)]
pub struct Setup {
    proxy: u16,
    admin: u16,
    sections: Vec<(String, String)>,
    default_route: String,
    routes: Vec<String>,
    extra: String,
    environment: Vec<(String, String)>,
    descriptors: Option<u32>,
    file: Option<String>,
}

impl Setup {
    /// Free ports, this ZooKeeper with sessions of 6 seconds, and one route `/wx/{account}/{*rest}` to this upstream.
    pub fn new(connect: &str, upstream: &str) -> Self {
        let (proxy, admin) = (free_port(), free_port());
        let sections = [
            ("listen", format!("proxy = \"{}\"\nadmin = \"{}\"", loopback(proxy), loopback(admin))),
            ("zookeeper", format!("connect = \"{connect}\"\nsession_timeout = \"6s\"")),
        ];
        Self {
            proxy,
            admin,
            sections: sections.map(|(name, lines)| (name.to_owned(), lines)).into(),
            default_route: format!(
                "path = \"/wx/{{account}}/{{*rest}}\"\naccount = \"path:account\"\nupstream = \"{upstream}\""
            ),
            routes: Vec::new(),
            extra: String::new(),
            environment: Vec::new(),
            descriptors: None,
            file: None,
        }
    }

    /// This file instead of one of its own; ports and ZooKeeper come with the environment.
    #[must_use]
    pub fn file(connect: &str, text: &str) -> Self {
        let mut setup = Self::new(connect, "http://unused");
        let (proxy, admin) = (loopback(setup.proxy), loopback(setup.admin));
        setup.file = Some(text.to_owned());
        setup
            .environment("FENCEGATE__LISTEN__PROXY", &proxy.to_string())
            .environment("FENCEGATE__LISTEN__ADMIN", &admin.to_string())
            .environment("FENCEGATE__ZOOKEEPER__CONNECT", connect)
    }

    /// A section with these lines, instead of the one that was there.
    #[must_use]
    pub fn section(mut self, name: &str, lines: &str) -> Self {
        self.sections.retain(|(have, _)| have != name);
        self.sections.push((name.to_owned(), lines.to_owned()));
        self
    }

    /// More lines in a section.
    #[must_use]
    pub fn more(mut self, name: &str, lines: &str) -> Self {
        match self.sections.iter_mut().find(|(have, _)| have == name) {
            Some((_, have)) => write!(have, "\n{lines}").unwrap(),
            None => self.sections.push((name.to_owned(), lines.to_owned())),
        }
        self
    }

    /// A route with these lines; the first one replaces the route that was there, further ones come after it.
    #[must_use]
    pub fn route(mut self, lines: &str) -> Self {
        self.routes.push(lines.to_owned());
        self
    }

    /// More lines in the default route.
    #[must_use]
    pub fn more_in_route(mut self, lines: &str) -> Self {
        write!(self.default_route, "\n{lines}").unwrap();
        self
    }

    /// Text at the end of the file.
    #[must_use]
    pub fn extra(mut self, text: &str) -> Self {
        writeln!(self.extra, "{text}").unwrap();
        self
    }

    /// One variable of its environment.
    #[must_use]
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// At most so many file descriptors.
    #[must_use]
    pub fn descriptors(mut self, count: u32) -> Self {
        self.descriptors = Some(count);
        self
    }

    /// The whole file.
    pub fn text(&self) -> String {
        if let Some(text) = &self.file {
            return text.clone();
        }
        let mut text = String::new();
        for (name, lines) in &self.sections {
            writeln!(text, "[{name}]\n{lines}\n").unwrap();
        }
        let routes =
            if self.routes.is_empty() { std::slice::from_ref(&self.default_route) } else { &self.routes };
        for lines in routes {
            writeln!(text, "[[route]]\n{lines}\n").unwrap();
        }
        text + &self.extra
    }

    /// Starts it and waits until it is ready.
    #[track_caller]
    pub fn start(self) -> Gateway {
        let gateway = self.start_unready();
        gateway.wait_until_ready();
        gateway
    }

    /// Starts it and returns at once.
    #[track_caller]
    pub fn start_unready(self) -> Gateway {
        let folder = Folder::new("gateway");
        let config = folder.write("gateway.toml", self.text());
        let log = folder.join("gateway.log");
        let process = spawn(&config, &log, &self);
        Gateway { setup: self, process: Mutex::new(process), config, log, folder }
    }
}

fn spawn(config: &Path, log: &Path, setup: &Setup) -> Process {
    let mut command = Command::new("sh");
    match setup.descriptors {
        Some(count) => command.args(["-c", &format!("ulimit -n {count} && exec \"$0\" \"$@\""), BINARY]),
        None => {
            command = Command::new(BINARY);
            &mut command
        }
    };
    command.arg("serve").arg("--config").arg(config);
    command.envs(setup.environment.iter().map(|(name, value)| (name, value)));
    Process::spawn("the gateway", command, log)
}

/// A running gateway. Killed when it is dropped; its log is shown if the test has failed.
pub struct Gateway {
    process: Mutex<Process>,
    setup: Setup,
    config: PathBuf,
    log: PathBuf,
    /// Removed last.
    folder: Folder,
}

impl Gateway {
    /// One with the default [`Setup`].
    #[track_caller]
    pub fn start(connect: &str, upstream: &str) -> Self {
        Setup::new(connect, upstream).start()
    }

    /// Returns when `/readyz` says 200; panics with its log if the process ends first.
    #[track_caller]
    pub fn wait_until_ready(&self) {
        wait_until("the gateway is ready", || {
            let process = self.process.lock().unwrap();
            let ended = process.ended();
            assert!(ended.is_none(), "the gateway ended: {ended:?}\n{}", process.log_tail());
            self.is_ready()
        });
    }

    /// Whether `/readyz` says 200.
    pub fn is_ready(&self) -> bool {
        try_call(self.admin(), "GET", "/readyz", &Headers::none(), b"")
            .is_ok_and(|response| response.status == 200)
    }

    /// The listener for sends.
    pub fn proxy(&self) -> SocketAddr {
        loopback(self.setup.proxy)
    }

    /// The listener for operators.
    pub fn admin(&self) -> SocketAddr {
        loopback(self.setup.admin)
    }

    /// The file it was started with, to be read or overwritten.
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// POSTs a JSON body to the account's default route.
    #[track_caller]
    pub fn send(&self, account: &str, token: &Headers, body: impl AsRef<[u8]>) -> Response {
        self.post(&format!("/wx/{account}/send"), token, body)
    }

    /// POSTs a JSON body to any target.
    #[track_caller]
    pub fn post(&self, target: &str, headers: &Headers, body: impl AsRef<[u8]>) -> Response {
        call(self.proxy(), "POST", target, &headers.clone().with("Content-Type", "application/json"), body)
    }

    /// One scrape.
    #[track_caller]
    pub fn metrics(&self) -> Metrics {
        Metrics::parse(&call(self.admin(), "GET", "/metrics", &Headers::none(), b"").text())
    }

    /// What the admin listener says of one account; nothing where it does not know it.
    #[track_caller]
    pub fn account(&self, account: &str) -> Option<Value> {
        let response = call(self.admin(), "GET", &format!("/v1/accounts/{account}"), &Headers::none(), b"");
        (response.status != 404).then(|| response.json())
    }

    /// Waits until the admin listener shows a holder with this seq; returns the account.
    #[track_caller]
    pub fn wait_for_holder(&self, account: &str, seq: i64) -> Value {
        wait_for(&format!("{account} held by {seq}"), || {
            self.account(account).filter(|shown| shown["holder"]["seq"] == seq)
        })
    }

    /// Everything it has written so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Waits for a line of its log that contains `part`; returns the line.
    #[track_caller]
    pub fn wait_for_line(&self, part: &str) -> String {
        wait_for(&format!("a line with {part:?}"), || {
            self.log().lines().find(|line| line.contains(part)).map(str::to_owned)
        })
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        self.process.lock().unwrap().signal(signal);
    }

    /// SIGTERM, and waits for its end; returns the exit code, none if a signal ended it.
    #[track_caller]
    pub fn terminate(&self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.wait(PATIENCE)
    }

    /// Waits until it ends by itself; returns the exit code, none if a signal ended it.
    #[track_caller]
    pub fn wait(&self, limit: Duration) -> Option<i32> {
        self.process.lock().unwrap().wait(limit).code()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.lock().unwrap().id()
    }

    /// Whether the process runs, frozen or not.
    pub fn is_running(&self) -> bool {
        self.process.lock().unwrap().ended().is_none()
    }

    /// SIGSTOP.
    #[track_caller]
    pub fn freeze(&self) {
        self.process.lock().unwrap().freeze();
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        self.process.lock().unwrap().thaw();
    }

    /// kill -9.
    pub fn kill(&self) {
        self.process.lock().unwrap().kill();
    }

    /// kill -9 if it runs, and a start with the same file, ports and log; returns before it is ready.
    #[track_caller]
    pub fn restart(&self) {
        let mut process = self.process.lock().unwrap();
        process.kill();
        *process = spawn(&self.config, &self.log, &self.setup);
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the gateway's log\n{}\n---", self.log());
        }
    }
}
