//! A real browser without a window, spoken to through a pipe (Chromium's DevTools protocol).
//!
//! Needs `chromium-headless-shell`, or another Chromium (Debian: packages `chromium-headless-shell`, `chromium`);
//! `CHROMIUM` names another one. It never skips: without one the test fails and says what to install.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

use super::place::Folder;
use super::process::Process;
use super::wait::{PATIENCE, POLL, now, wait_until};

/// A browser with one page open.
pub struct Browser {
    to: Mutex<File>,
    answers: Mutex<Receiver<Value>>,
    /// What the page has complained about: exceptions, errors of its console, what its policy blocked.
    complaints: Arc<Mutex<Vec<String>>>,
    next: AtomicU64,
    session: String,
    process: Process,
    /// Removed last.
    folder: Folder,
}

impl Browser {
    /// Starts one with an empty page of this size.
    #[track_caller]
    pub fn start(width: u32, height: u32) -> Self {
        let folder = Folder::new("browser");
        let (to, from) = (folder.join("to"), folder.join("from"));
        let made = Command::new("mkfifo").args([&to, &from]).status();
        assert!(made.is_ok_and(|status| status.success()), "mkfifo makes two pipes");
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" \"$@\" 3<\"$TO\" 4>\"$FROM\""]).arg(program()).args([
            "--headless",
            "--remote-debugging-pipe",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
        ]);
        command.arg(format!("--window-size={width},{height}"));
        command.arg(format!("--user-data-dir={}", folder.join("profile").display()));
        command.env("TO", &to).env("FROM", &from);
        let process = Process::spawn("the browser", command, &folder.join("browser.log"));
        // Each end waits for the other one. Ours go with this process whatever becomes of it, and the browser ends then.
        let to = OpenOptions::new().write(true).open(&to).expect("a pipe");
        let out = File::open(&from).expect("a pipe");
        let (told, answers) = channel();
        let complaints = Arc::<Mutex<Vec<String>>>::default();
        let heard = Arc::clone(&complaints);
        std::thread::spawn(move || {
            for message in BufReader::new(out).split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice::<Value>(&message) else { break };
                if message["id"].is_u64() {
                    let _ = told.send(message);
                } else if let Some(complaint) = complaint(&message) {
                    heard.lock().unwrap().push(complaint);
                }
            }
        });
        let mut browser = Self {
            to: Mutex::new(to),
            answers: Mutex::new(answers),
            complaints,
            next: AtomicU64::new(1),
            session: String::new(),
            process,
            folder,
        };
        let target = browser.command("Target.createTarget", &json!({ "url": "about:blank" }));
        let attached = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.command("Target.attachToTarget", &attached);
        attached["sessionId"].as_str().expect("a session").clone_into(&mut browser.session);
        for part in ["Page", "Runtime", "Log"] {
            browser.command(&format!("{part}.enable"), &json!({}));
        }
        browser
    }

    /// Sends one command of the protocol and waits for its result.
    #[track_caller]
    pub fn command(&self, method: &str, parameters: &Value) -> Value {
        let id = self.next.fetch_add(1, Ordering::SeqCst);
        let mut message = json!({ "id": id, "method": method, "params": parameters });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let answers = self.answers.lock().unwrap();
        self.to.lock().unwrap().write_all(format!("{message}\0").as_bytes()).expect("the browser listens");
        loop {
            let answer = answers.recv_timeout(PATIENCE);
            let answer =
                answer.unwrap_or_else(|_| panic!("{method}: no answer\n{}", self.process.log_tail()));
            if answer["id"] == id {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
        }
    }

    /// Opens a page.
    #[track_caller]
    pub fn open(&self, url: &str) {
        let opened = self.command("Page.navigate", &json!({ "url": url }));
        assert!(opened["errorText"].is_null(), "{url}: {opened}");
        wait_until("the page is there", || self.ask("document.readyState") == "complete");
    }

    /// What a JavaScript expression is in the page; a promise is waited for.
    #[track_caller]
    pub fn ask(&self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.command("Runtime.evaluate", &asked);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].clone()
    }

    /// The text that an element shows.
    #[track_caller]
    pub fn text(&self, selector: &str) -> String {
        self.ask(&format!("document.querySelector({}).innerText", json!(selector)))
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// Waits until an expression is true in the page.
    #[track_caller]
    pub fn wait_until(&self, what: &str, expression: &str) {
        wait_until(what, || self.ask(expression) == true);
    }

    /// What the page has complained about so far.
    pub fn complaints(&self) -> Vec<String> {
        self.complaints.lock().unwrap().clone()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // What was started may be a script around the browser: killed alone, it would leave the browser behind.
        let mut to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = to.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        let deadline = now() + PATIENCE;
        while self.process.ended().is_none() && now() < deadline {
            std::thread::sleep(POLL);
        }
    }
}

fn complaint(message: &Value) -> Option<String> {
    let (method, said) = (message["method"].as_str()?, &message["params"]);
    let is_one = match method {
        "Runtime.exceptionThrown" => true,
        "Runtime.consoleAPICalled" => ["error", "assert"].contains(&said["type"].as_str()?),
        "Log.entryAdded" => said["entry"]["level"] == "error",
        _ => false,
    };
    is_one.then(|| format!("{method}: {said}"))
}

fn program() -> String {
    let known =
        ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"].map(str::to_owned);
    let given = std::env::var("CHROMIUM").ok();
    given
        .into_iter()
        .chain(known)
        .find(|program| Command::new(program).arg("--version").output().is_ok_and(|ran| ran.status.success()))
        .expect(
            "no browser: install one (apt-get install chromium-headless-shell), or set CHROMIUM to its path",
        )
}
