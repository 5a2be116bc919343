//! Real Apache ZooKeeper servers, one or an ensemble.
//!
//! Needs `java` and ZooKeeper's jar (Debian: packages `default-jre-headless` and `zookeeper`; nothing needs to run).
//! `ZOOKEEPER_CLASSPATH` names another jar or a class path.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use super::place::{Folder, copy_folder, free_port, loopback};
use super::process::Process;
use super::wait::wait_until;

const MAIN: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";

/// What servers to start. Made by [`Ensemble::plan`].
#[derive(Clone, Debug)]
pub struct Plan {
    size: usize,
    tick_ms: u32,
    heap: String,
    properties: Vec<String>,
    lines: Vec<String>,
}

impl Plan {
    /// ZooKeeper's tickTime (default 500): sessions last 2 ticks at least.
    pub fn tick_ms(mut self, tick_ms: u32) -> Self {
        self.tick_ms = tick_ms;
        self
    }

    /// Java's heap of each server, as in `1g` (default `256m`).
    pub fn heap(mut self, heap: &str) -> Self {
        heap.clone_into(&mut self.heap);
        self
    }

    /// One more system property of each server, as in `zookeeper.enableEagerACLCheck=true`.
    pub fn property(mut self, property: &str) -> Self {
        self.properties.push(property.to_owned());
        self
    }

    /// One more line of each server's configuration.
    pub fn line(mut self, line: &str) -> Self {
        self.lines.push(line.to_owned());
        self
    }

    /// Starts all servers and waits until each serves.
    #[track_caller]
    pub fn start(self) -> Ensemble {
        let folder = Folder::new("zookeeper");
        let peers: Vec<_> = (0..self.size).map(|_| (free_port(), free_port())).collect();
        let mut quorum = String::new();
        if self.size > 1 {
            quorum.push_str("initLimit=20\nsyncLimit=10\n");
            for (index, (data, vote)) in peers.iter().enumerate() {
                writeln!(quorum, "server.{}=127.0.0.1:{data}:{vote}", index + 1).unwrap();
            }
        }
        let servers = (1..=self.size).map(|number| self.prepare(number, &quorum, &folder)).collect();
        let ensemble = Ensemble { servers, folder };
        ensemble.servers.iter().for_each(ZooKeeper::start);
        ensemble.wait_until_serving();
        ensemble
    }

    fn prepare(&self, number: usize, quorum: &str, folder: &Folder) -> ZooKeeper {
        let port = free_port();
        let data = folder.join(&format!("data{number}"));
        std::fs::create_dir(&data).expect("a data folder");
        let name = format!("ZooKeeper {number} on port {port}");
        let mut config = format!(
            "tickTime={}\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n\
             maxSessionTimeout=60000\nadmin.enableServer=false\n{quorum}",
            self.tick_ms,
            data.display()
        );
        for line in &self.lines {
            writeln!(config, "{line}").unwrap();
        }
        if !quorum.is_empty() {
            std::fs::write(data.join("myid"), number.to_string()).expect("myid");
        }
        let config = folder.write(&format!("zoo{number}.cfg"), config);
        let log = folder.join(&format!("server{number}.log"));
        let mut options = vec![format!("-Xmx{}", self.heap)];
        options.extend(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"].map(String::from));
        options.extend(
            [
                "admin.enableServer=false",
                "4lw.commands.whitelist=*",
                "extendedTypesEnabled=true",
                "forceSync=no",
            ]
            .map(|property| format!("-Dzookeeper.{property}")),
        );
        options.extend(self.properties.iter().map(|property| format!("-D{property}")));
        ZooKeeper { name, port, config, data, log, options, process: Mutex::default() }
    }
}

/// One ZooKeeper server. It keeps its port and its data over stops and restarts.
#[derive(Debug)]
pub struct ZooKeeper {
    name: String,
    port: u16,
    config: PathBuf,
    data: PathBuf,
    log: PathBuf,
    options: Vec<String>,
    process: Mutex<Option<Process>>,
}

impl ZooKeeper {
    /// Starts the process; returns before it serves. Nothing happens if it runs.
    #[track_caller]
    pub fn start(&self) {
        let mut process = self.process.lock().unwrap();
        if process.as_ref().is_none_or(|process| process.ended().is_some()) {
            let class_path = class_path();
            let mut java = Command::new("java");
            java.args(&self.options).arg("-cp").arg(class_path).arg(MAIN).arg(&self.config);
            *process = Some(Process::spawn(&self.name, java, &self.log));
        }
    }

    /// kill -9. The data stays.
    pub fn stop(&self) {
        drop(self.process.lock().unwrap().take());
    }

    /// kill -9 and a start over the same data; returns before it serves.
    #[track_caller]
    pub fn restart(&self) {
        self.stop();
        self.start();
    }

    /// SIGSTOP: connections stay open and nothing is answered.
    #[track_caller]
    pub fn freeze(&self) {
        self.running(Process::freeze);
    }

    /// SIGCONT.
    #[track_caller]
    pub fn thaw(&self) {
        self.running(Process::thaw);
    }

    /// Stops it and forgets all data, as a lost disk would.
    pub fn wipe(&self) {
        self.stop();
        let _ = std::fs::remove_dir_all(self.data.join("version-2"));
    }

    /// Stops it and copies its data into a new folder, for [`ZooKeeper::put_back`].
    pub fn back_up(&self) -> Folder {
        self.stop();
        let folder = Folder::new("backup");
        copy_folder(&self.data.join("version-2"), &folder.join("version-2")).expect("a copy of the data");
        folder
    }

    /// Stops it and replaces its data by an older copy.
    pub fn put_back(&self, backup: &Folder) {
        self.wipe();
        copy_folder(&backup.join("version-2"), &self.data.join("version-2")).expect("the copy put back");
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A connect string of this server alone.
    pub fn connect(&self) -> String {
        loopback(self.port).to_string()
    }

    /// Asks with one of ZooKeeper's four-letter words, as in `srvr`, `mntr`, `wchs`, `cons`.
    ///
    /// # Errors
    /// Whatever the socket says: refused while it is stopped, timed out while it is frozen.
    pub fn four_letter(&self, word: &str) -> std::io::Result<String> {
        let limit = Duration::from_secs(2);
        let mut stream = TcpStream::connect_timeout(&loopback(self.port), limit)?;
        stream.set_read_timeout(Some(limit))?;
        stream.write_all(word.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// One value of `mntr`, as in `zk_znode_count`.
    pub fn monitor(&self, key: &str) -> Option<String> {
        let answer = self.four_letter("mntr").ok()?;
        answer.lines().find_map(|line| Some(line.strip_prefix(key)?.strip_prefix('\t')?.to_owned()))
    }

    /// `standalone`, `leader` or `follower` while it serves.
    pub fn mode(&self) -> Option<String> {
        let answer = self.four_letter("srvr").ok()?;
        answer.lines().find_map(|line| Some(line.strip_prefix("Mode: ")?.to_owned()))
    }

    /// Returns when it serves; panics with its log if the process ends first.
    #[track_caller]
    pub fn wait_until_serving(&self) {
        wait_until(&format!("{} serves", self.name), || {
            self.running(|process| {
                let ended = process.ended();
                assert!(ended.is_none(), "{} ended: {ended:?}\n{}", self.name, process.log_tail());
            });
            self.mode().is_some()
        });
    }

    #[track_caller]
    fn running<T>(&self, act: impl FnOnce(&Process) -> T) -> T {
        let process = self.process.lock().unwrap();
        act(process.as_ref().unwrap_or_else(|| panic!("{} is stopped", self.name)))
    }
}

/// One standalone server, or several that vote.
#[derive(Debug)]
pub struct Ensemble {
    servers: Vec<ZooKeeper>,
    /// Removed after the servers have ended: fields are dropped in order.
    folder: Folder,
}

impl Ensemble {
    /// Starts 1 or 3 servers and waits until each serves.
    #[track_caller]
    pub fn start(size: usize) -> Self {
        Self::plan(size).start()
    }

    /// The same with choices.
    pub fn plan(size: usize) -> Plan {
        assert!(size == 1 || size == 3, "an ensemble has 1 or 3 servers");
        Plan { size, tick_ms: 500, heap: "256m".to_owned(), properties: Vec::new(), lines: Vec::new() }
    }

    /// The connect string of all servers.
    pub fn connect(&self) -> String {
        self.servers.iter().map(ZooKeeper::connect).collect::<Vec<_>>().join(",")
    }

    /// All servers.
    pub fn servers(&self) -> &[ZooKeeper] {
        &self.servers
    }

    /// One server, counted from zero.
    pub fn server(&self, index: usize) -> &ZooKeeper {
        &self.servers[index]
    }

    /// The index of the server that leads the ensemble, if one says so.
    pub fn leading(&self) -> Option<usize> {
        self.servers
            .iter()
            .position(|server| matches!(server.mode().as_deref(), Some("leader" | "standalone")))
    }

    /// The index of a server that follows, if one says so.
    pub fn following(&self) -> Option<usize> {
        self.servers.iter().position(|server| server.mode().as_deref() == Some("follower"))
    }

    /// Returns when every server serves.
    #[track_caller]
    pub fn wait_until_serving(&self) {
        self.servers.iter().for_each(ZooKeeper::wait_until_serving);
    }
}

/// The class path for the servers; panics with what to install where it is missing.
fn class_path() -> String {
    let given = std::env::var("ZOOKEEPER_CLASSPATH").ok();
    let path = given.unwrap_or_else(|| "/usr/share/java/zookeeper.jar".to_owned());
    let here = path.split(':').any(|part| std::path::Path::new(part.trim_end_matches('*')).exists());
    assert!(
        here,
        "no ZooKeeper at {path}: install Debian's package `zookeeper` (apt-get install zookeeper; nothing needs to \
         run), or set ZOOKEEPER_CLASSPATH"
    );
    static JAVA: LazyLock<bool> = LazyLock::new(|| {
        Command::new("java").arg("-version").output().is_ok_and(|output| output.status.success())
    });
    assert!(
        *JAVA,
        "no Java: install a runtime (apt-get install default-jre-headless) so that `java` is found"
    );
    path
}
