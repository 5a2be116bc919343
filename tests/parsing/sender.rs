//! A sender that parses for itself, byte by byte, and notes every request in which it finds another account than the gateway
//! says it judged.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use crate::readers;

/// What it has noted.
#[derive(Default)]
pub(crate) struct Notes {
    /// How often each case began to arrive.
    pub(crate) seen: HashMap<String, usize>,
    /// What must not be.
    pub(crate) wrong: Vec<String>,
    /// Whole requests.
    pub(crate) whole: usize,
}

pub(crate) struct Strict {
    pub(crate) address: SocketAddr,
    pub(crate) notes: Arc<Mutex<Notes>>,
}

impl Strict {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let notes: Arc<Mutex<Notes>> = Arc::default();
        let shared = Arc::clone(&notes);
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let notes = Arc::clone(&shared);
                std::thread::spawn(move || serve(stream, &notes));
            }
        });
        Self { address, notes }
    }
}

/// Reads requests until the connection ends.
fn serve(mut stream: TcpStream, notes: &Mutex<Notes>) {
    let _ = stream.set_nodelay(true);
    let mut pending = Vec::new();
    loop {
        let Some(head) = take(&mut stream, &mut pending, |bytes| {
            bytes.windows(4).position(|end| end == b"\r\n\r\n").map(|at| at + 4)
        }) else {
            if !pending.is_empty() {
                notes.lock().unwrap().wrong.push(format!("a broken head: {}", pending.escape_ascii()));
            }
            return;
        };
        let request = match parse(&head) {
            Ok(request) => request,
            Err(why) => {
                notes.lock().unwrap().wrong.push(format!("{why}: {}", head.escape_ascii()));
                return;
            }
        };
        {
            let mut notes = notes.lock().unwrap();
            *notes.seen.entry(request.case.clone()).or_default() += 1;
        }
        let Some(body) = read_body(&mut stream, &mut pending, &request) else { return };
        let readers = readers::accounts(&request.target, &request.fields, &body);
        let judged = request.account.clone();
        let mut readings = readers.iter();
        let fits = readings.next().is_some_and(|first| *first == Some(judged.clone()))
            && readings.all(|found| found.as_ref().is_none_or(|found| *found == judged));
        let mut notes = notes.lock().unwrap();
        notes.whole += 1;
        if !fits {
            let (head, body) = (head.escape_ascii(), body.escape_ascii());
            notes.wrong.push(format!("judged {judged:?}, but readers find {readers:?}: {head}{body}"));
        }
        drop(notes);
        if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err() {
            return;
        }
    }
}

struct Request {
    target: String,
    fields: Vec<(String, Vec<u8>)>,
    account: String,
    case: String,
}

/// Parses a head, strictly: whatever could be read in two ways is an error.
fn parse(head: &[u8]) -> Result<Request, String> {
    let head = head.strip_suffix(b"\r\n\r\n").unwrap_or(head);
    let mut lines = Vec::new();
    let mut rest = head;
    while let Some(at) = rest.windows(2).position(|end| end == b"\r\n") {
        lines.push(&rest[..at]);
        rest = &rest[at + 2..];
    }
    lines.push(rest);
    if lines.iter().any(|line| line.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0))) {
        return Err("a bare CR, LF or NUL".to_owned());
    }
    let first = std::str::from_utf8(lines[0]).map_err(|_| "a first line that is no text".to_owned())?;
    let words: Vec<&str> = first.split(' ').collect();
    let &[_, target, "HTTP/1.1"] = words.as_slice() else { return Err("an odd first line".to_owned()) };
    let path = target.split('?').next().unwrap_or_default();
    if !path.starts_with('/')
        || path.contains('\\')
        || target.contains('#')
        || !target.bytes().all(|b| b.is_ascii_graphic())
    {
        return Err("an odd target".to_owned());
    }
    let mut fields = Vec::new();
    for line in &lines[1..] {
        let colon = line.iter().position(|byte| *byte == b':').ok_or("a field without a colon")?;
        let name = std::str::from_utf8(&line[..colon]).map_err(|_| "an odd name".to_owned())?;
        if name.is_empty() || name.contains(|c: char| c.is_ascii_uppercase() || c.is_whitespace()) {
            return Err("an odd name".to_owned());
        }
        fields.push((name.to_owned(), line[colon + 1..].trim_ascii().to_vec()));
    }
    let all = |name: &str| fields.iter().filter(|(have, _)| have == name).collect::<Vec<_>>();
    if all("host").len() != 1 {
        return Err("not one Host".to_owned());
    }
    if all("content-length").len() + all("transfer-encoding").len() > 1 {
        return Err("two framings".to_owned());
    }
    let fencing: Vec<_> = fields
        .iter()
        .filter(|(name, _)| name.replace(|c: char| !c.is_alphanumeric(), "-").starts_with("x-fencing-"))
        .collect();
    if fencing.len() != 5
        || fencing.iter().any(|(name, _)| name.contains(|c: char| !c.is_alphanumeric() && c != '-'))
    {
        return Err(format!("{} fencing fields", fencing.len()));
    }
    for (name, _) in &fields {
        let plain = name.replace(|c: char| !c.is_alphanumeric(), "-");
        let decides = ["content-type", "content-length", "content-encoding", "transfer-encoding", "host"];
        if plain != *name && decides.contains(&plain.as_str()) {
            return Err(format!("{name} is {plain} to some"));
        }
    }
    for other in ["x-original-url", "x-rewrite-url"] {
        if all(other).iter().any(|(_, value)| value != target.as_bytes()) {
            return Err("another target beside its own".to_owned());
        }
    }
    for gone in ["connection", "upgrade", "expect", "te", "trailer", "keep-alive", "http2-settings"] {
        if !all(gone).is_empty() {
            return Err(format!("{gone} is there"));
        }
    }
    let value = |name: &str| all(name).first().map(|(_, value)| String::from_utf8_lossy(value).into_owned());
    let account = value("x-fencing-account").ok_or("no account")?;
    let case = value("x-case").unwrap_or_default();
    Ok(Request { target: target.to_owned(), account, case, fields })
}

fn read_body(stream: &mut TcpStream, pending: &mut Vec<u8>, request: &Request) -> Option<Vec<u8>> {
    let value = |name: &str| {
        let field = request.fields.iter().find(|(have, _)| have == name);
        field.map(|(_, value)| String::from_utf8_lossy(value).into_owned())
    };
    if let Some(length) = value("content-length") {
        let length: usize = length.parse().ok()?;
        return take(stream, pending, |bytes| (bytes.len() >= length).then_some(length));
    }
    let mut body = Vec::new();
    if value("transfer-encoding").is_none() {
        return Some(body);
    }
    loop {
        let line =
            take(stream, pending, |bytes| bytes.windows(2).position(|end| end == b"\r\n").map(|at| at + 2))?;
        let size = usize::from_str_radix(std::str::from_utf8(&line[..line.len() - 2]).ok()?, 16).ok()?;
        let chunk = take(stream, pending, |bytes| (bytes.len() >= size + 2).then_some(size + 2))?;
        body.extend_from_slice(&chunk[..size]);
        if size == 0 {
            return Some(body);
        }
    }
}

/// Reads until `end` says how many bytes belong together; those. Nothing if the connection ends before.
fn take(
    stream: &mut TcpStream,
    pending: &mut Vec<u8>,
    end: impl Fn(&[u8]) -> Option<usize>,
) -> Option<Vec<u8>> {
    loop {
        if let Some(count) = end(pending) {
            return Some(pending.drain(..count).collect());
        }
        let mut piece = [0; 16 * 1024];
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => return None,
            Ok(count) => pending.extend_from_slice(&piece[..count]),
        }
    }
}
