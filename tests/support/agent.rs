//! The built binary as an agent: a configuration, a process, and calls to it.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::gateway::BINARY;
use super::http1::{Headers, Response, call, try_call};
use super::metrics::Metrics;
use super::place::{Folder, free_port, loopback};
use super::process::Process;
use super::wait::{PATIENCE, wait_for, wait_until};

/// What agent to start.
#[derive(Clone, Debug)]
pub struct AgentSetup {
    listen: u16,
    admin: u16,
    sections: Vec<(String, String)>,
    descriptors: Option<u32>,
}

impl AgentSetup {
    /// Free ports, this ZooKeeper with sessions of 6 seconds, this gateway and these accounts (as TOML).
    pub fn new(connect: &str, gateway: SocketAddr, instance: &str, accounts: &str) -> Self {
        let (listen, admin) = (free_port(), free_port());
        let agent = format!(
            "instance_id = \"{instance}\"\nlisten = \"{}\"\nadmin = \"{}\"\ngateway = \"http://{gateway}\"\n\
             accounts = {accounts}",
            loopback(listen),
            loopback(admin)
        );
        let route = "path = \"/wx/{account}/{*rest}\"\naccount = \"path:account\"";
        let sections = [
            ("[agent]", agent),
            ("[zookeeper]", format!("connect = \"{connect}\"\nsession_timeout = \"6s\"")),
            ("[[route]]", route.to_owned()),
        ];
        let sections = sections.map(|(name, lines)| (name.to_owned(), lines)).into();
        Self { listen, admin, sections, descriptors: None }
    }

    /// With the elections that a gateway keeps on this listener, instead of ZooKeeper's.
    #[must_use]
    pub fn with_elections_at(mut self, elections: SocketAddr) -> Self {
        self.sections.retain(|(name, _)| name != "[zookeeper]");
        let lines =
            format!("backend = \"gateway\"\nelections = \"http://{elections}\"\nsession_timeout = \"6s\"");
        self.section("[coordination]", &lines)
    }

    /// More lines in a section, named with its brackets.
    #[must_use]
    pub fn more(mut self, name: &str, lines: &str) -> Self {
        match self.sections.iter_mut().find(|(have, _)| have == name) {
            Some((_, have)) => write!(have, "\n{lines}").unwrap(),
            None => self.sections.push((name.to_owned(), lines.to_owned())),
        }
        self
    }

    /// A section with these lines, instead of the one that was there.
    #[must_use]
    pub fn section(mut self, name: &str, lines: &str) -> Self {
        self.sections.retain(|(have, _)| have != name);
        self.sections.push((name.to_owned(), lines.to_owned()));
        self
    }

    /// Speaks to its gateway over TLS, and trusts this authority.
    #[must_use]
    pub fn over_tls(mut self, ca: &Path) -> Self {
        for (_, lines) in self.sections.iter_mut().filter(|(name, _)| name == "[agent]") {
            *lines = format!("{}\ngateway_ca = {ca:?}", lines.replace("http://", "https://"));
        }
        self
    }

    /// At most so many file descriptors.
    #[must_use]
    pub fn descriptors(mut self, count: u32) -> Self {
        self.descriptors = Some(count);
        self
    }

    /// Starts it and returns at once.
    #[track_caller]
    pub fn start(self) -> Agent {
        let folder = Folder::new("agent");
        let text: String = self.sections.iter().map(|(name, lines)| format!("{name}\n{lines}\n\n")).collect();
        let config = folder.write("agent.toml", text);
        let log = folder.join("agent.log");
        let process = spawn(&config, &log, self.descriptors);
        Agent { process: Mutex::new(process), listen: self.listen, admin: self.admin, config, log, folder }
    }
}

fn spawn(config: &Path, log: &Path, descriptors: Option<u32>) -> Process {
    let mut command = Command::new("sh");
    match descriptors {
        Some(count) => command.args(["-c", &format!("ulimit -n {count} && exec \"$0\" \"$@\""), BINARY]),
        None => {
            command = Command::new(BINARY);
            &mut command
        }
    };
    command.arg("agent").arg("--config").arg(config);
    Process::spawn("the agent", command, log)
}

/// A running agent. Killed when it is dropped; its log is shown if the test has failed.
pub struct Agent {
    process: Mutex<Process>,
    listen: u16,
    admin: u16,
    config: PathBuf,
    log: PathBuf,
    /// Removed last.
    folder: Folder,
}

impl Agent {
    /// The listener for bots.
    pub fn bots(&self) -> SocketAddr {
        loopback(self.listen)
    }

    /// The listener for operators.
    pub fn admin(&self) -> SocketAddr {
        loopback(self.admin)
    }

    /// What `/v1/roles` says; nothing while it does not answer.
    pub fn roles(&self) -> Option<Value> {
        let response = try_call(self.admin(), "GET", "/v1/roles", &Headers::none(), b"").ok()?;
        (response.status == 200).then(|| response.json())
    }

    /// One account of `/v1/roles`.
    pub fn role_of(&self, account: &str) -> Option<Value> {
        let roles = self.roles()?;
        roles["accounts"].as_array()?.iter().find(|role| role["account"] == account).cloned()
    }

    /// Waits until an account has this role; returns it.
    #[track_caller]
    pub fn wait_for_role(&self, account: &str, role: &str) -> Value {
        wait_for(&format!("{account} is {role}"), || {
            self.running();
            self.role_of(account).filter(|shown| shown["role"] == role)
        })
    }

    /// Whether `/readyz` says 200.
    pub fn is_ready(&self) -> bool {
        try_call(self.admin(), "GET", "/readyz", &Headers::none(), b"")
            .is_ok_and(|response| response.status == 200)
    }

    /// POSTs a JSON body for an account, as a bot does.
    #[track_caller]
    pub fn send(&self, account: &str, headers: &Headers, body: impl AsRef<[u8]>) -> Response {
        let headers = headers.clone().with("Content-Type", "application/json");
        call(self.bots(), "POST", &format!("/wx/{account}/send"), &headers, body)
    }

    /// One scrape.
    #[track_caller]
    pub fn metrics(&self) -> Metrics {
        Metrics::parse(&call(self.admin(), "GET", "/metrics", &Headers::none(), b"").text())
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

    /// A path in its folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    #[track_caller]
    fn running(&self) {
        let process = self.process.lock().unwrap();
        let ended = process.ended();
        assert!(ended.is_none(), "the agent ended: {ended:?}\n{}", process.log_tail());
    }

    /// SIGTERM, and waits for its end; returns the exit code, none if a signal ended it.
    #[track_caller]
    pub fn terminate(&self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.wait(PATIENCE)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        self.process.lock().unwrap().signal(signal);
    }

    /// Waits until it ends by itself.
    #[track_caller]
    pub fn wait(&self, limit: Duration) -> Option<i32> {
        self.process.lock().unwrap().wait(limit).code()
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

    /// kill -9 if it runs, and a start with the same file, ports and log.
    #[track_caller]
    pub fn restart(&self) {
        let mut process = self.process.lock().unwrap();
        process.kill();
        *process = spawn(&self.config, &self.log, None);
    }

    /// Returns when it answers.
    #[track_caller]
    pub fn wait_until_answering(&self) {
        wait_until("the agent answers", || {
            self.running();
            self.roles().is_some()
        });
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the agent's log\n{}\n---", self.log());
        }
    }
}
