//! A child process that can be frozen, thawed, told to end, and killed. It never outlives its value.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Mutex;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::wait::{wait_for_within, wait_until};

/// A running child whose output goes to a log file.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: Pid,
    child: Mutex<Child>,
    log: PathBuf,
}

impl Process {
    /// Starts `command`; both of its outputs are appended to `log`.
    pub fn spawn(name: &str, mut command: Command, log: &Path) -> Self {
        let out: File = OpenOptions::new().create(true).append(true).open(log).expect("a log file");
        command.stdin(std::process::Stdio::null());
        command.stdout(out.try_clone().expect("a second handle")).stderr(out);
        let child = command.spawn().unwrap_or_else(|error| panic!("{name} does not start: {error}"));
        let pid = Pid::from_child(&child);
        Self { name: name.to_owned(), pid, child: Mutex::new(child), log: log.to_owned() }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        u32::try_from(self.pid.as_raw_nonzero().get()).unwrap()
    }

    /// How it ended, if it did.
    pub fn ended(&self) -> Option<ExitStatus> {
        self.child.lock().unwrap().try_wait().expect("the child can be asked")
    }

    /// Blocks until it ends by itself; panics with its log after `limit`.
    #[track_caller]
    pub fn wait(&self, limit: Duration) -> ExitStatus {
        wait_for_within(&format!("{} ends", self.name), limit, || self.ended())
    }

    /// Sends a signal; nothing happens if it has ended.
    pub fn signal(&self, signal: Signal) {
        let mut child = self.child.lock().unwrap();
        if matches!(child.try_wait(), Ok(None)) {
            let _ = kill_process(self.pid, signal);
        }
    }

    /// SIGSTOP; returns when every thread stands still.
    #[track_caller]
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        wait_until(&format!("{} stands still", self.name), || self.is_frozen());
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// SIGKILL, as a power cut would; returns when it is gone. Frozen or ended processes too.
    pub fn kill(&self) {
        let mut child = self.child.lock().unwrap();
        let _ = child.kill();
        let _ = child.wait();
    }

    /// The last part of its log, for messages.
    pub fn log_tail(&self) -> String {
        let text = String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    fn is_frozen(&self) -> bool {
        let Ok(threads) = std::fs::read_dir(format!("/proc/{}/task", self.id())) else { return false };
        threads.flatten().all(|thread| match std::fs::read_to_string(thread.path().join("stat")) {
            Ok(stat) => stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T')),
            Err(_) => true,
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
